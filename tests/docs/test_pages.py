"""Every block of the pages works: commands run, programs run, settings are valid. Nothing is skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import PAGES, Block, blocks_of, name_of
from tests.docs.foreign import STAND_INS
from tests.docs.play import play
from tests.docs.reading import Reading, UnknownLanguage
from tests.docs.scenes import SCENES

NAMES = [name_of(page) for page in PAGES if blocks_of(page)]
HERE = [name for name in NAMES if name not in SCENES or not SCENES[name].engine]
"""Pages without the engine; tests/real, where the engine runs, plays the others."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", HERE)
def test_the_blocks_of_a_page(page: str, tmp_path: Path) -> None:
    play(page, tmp_path)


def test_scenes_are_of_pages() -> None:
    assert [name for name in SCENES if name not in NAMES] == []


def test_only_what_a_page_names_has_a_stand_in() -> None:
    typed = " ".join(block.text for page in PAGES for block in blocks_of(page) if block.language == "sh").split()
    assert [name for name in STAND_INS if name not in typed] == []


@pytest.mark.parametrize("language", ["", "bash", "console", "yml"])
def test_a_block_in_another_language_is_not_passed_over(language: str, tmp_path: Path) -> None:
    with pytest.raises(UnknownLanguage):
        Reading(tmp_path, {}, 1, None).run(Block("page.md", 1, language, "true\n"))


@pytest.mark.parametrize(
    "line", ["nproxy check nproxy.yaml", "$ ls", "KEY=a nproxy serve", "sudo make", "sh a.sh", "npm i x"]
)
def test_a_command_is_not_passed_over_as_text(line: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="so it is sh"):
        Reading(tmp_path, {}, 1, None).run(Block("page.md", 1, "text", f"some words\n{line}\n"))


@pytest.mark.parametrize("line", ["pip install '.[engin]'", "pip install opneai", "cp deploy/none /etc/", "make sreve"])
def test_a_stand_in_takes_good_words_only(line: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="exit code"):
        Reading(tmp_path, {}, 1, None).run(Block("page.md", 1, "sh", f"{line}\n"))


@pytest.mark.parametrize(
    "text",
    [
        "~~~sh\nfalse\n~~~\n",
        "> ```sh\n> false\n> ```\n",
        "<pre>false</pre>\n",
        "So:\n\n    $ make serve\n",
        "```sh\nfalse\n",
    ],
)
def test_a_block_in_other_marks_is_not_passed_over(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.docs.blocks.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(ValueError, match=r"a block that is not found|not closed"):
        blocks_of(page)


def test_a_command_that_fails_is_seen(tmp_path: Path) -> None:
    reading = Reading(tmp_path, {}, 1, None)
    reading.run(Block("page.md", 1, "sh", "true\n"))
    with pytest.raises(AssertionError, match="exit code 3"):
        reading.run(Block("page.md", 1, "sh", "true\n(exit 3)\ntrue\n"))


def test_blocks_are_found_wherever_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.docs.blocks.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("words\n\n```sh\ntrue\n```\n\n- in a list\n\n  ```yaml\n  a: {b: 1}\n  ```\n")
    assert blocks_of(page) == [Block("page.md", 4, "sh", "true\n"), Block("page.md", 10, "yaml", "a: {b: 1}\n")]
