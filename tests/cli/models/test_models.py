"""`nproxy models` as a user meets it: real huggingface_hub and real pip, against servers on loopback."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from nproxy.models import DEFAULT
from tests.fakes.model_hub import COMMIT, Hub, model_hub
from tests.fakes.terminal import CONTROL_C, nproxy, terminal
from tests.fakes.upstream import raw_server

FOLDER = {
    "config.json": b"{}",
    "tokenizer.json": b'{"model": 1}',
    "model.safetensors": b"w" * 4986,
    "model.bin": b"a pickle",
}
GGUFS = {"README.md": b"#", "small.gguf": b"GGUF" + b"s" * 3000, "sub/large.gguf": b"GGUF" + b"l" * 7000}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty caches."""
    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGINGFACE_"))]:
        monkeypatch.delenv(name)
    for name, value in {"HF_HOME": tmp_path / "hf", "NPROXY_CACHE": tmp_path / "nproxy"}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    return tmp_path


class Done(NamedTuple):
    code: int
    out: str
    err: str


RUN = """
import json, sys
from click.testing import CliRunner
from nproxy.cli import main
for line in json.load(sys.stdin):
    done = CliRunner().invoke(main, ["models", *line.split()])
    print(json.dumps([done.exit_code, done.stdout, done.stderr]))
"""


def models(*lines: str, hub: Hub | None = None) -> list[Done]:
    """What `nproxy models` does with each of these lines, in a pipe.

    All in one process, but not in this one: the library reads its settings when it is imported, which takes long.
    """
    environment = {**os.environ, **({} if hub is None else {"HF_ENDPOINT": hub.url})}
    argv = [sys.executable, "-c", RUN]
    said = subprocess.check_output(argv, input=json.dumps(lines), env=environment, text=True, timeout=100)
    return [Done(*json.loads(line)) for line in said.splitlines()]


def names(done: Done) -> dict[str, int]:
    """What `list --json` lists, with sizes."""
    return {model["name"]: model["bytes"] for model in json.loads(done.out)["models"]}


LIST = "list --json"


def listed() -> dict[str, int]:
    (done,) = models(LIST)
    return names(done)


def test_nothing_is_here_at_first(place: Path) -> None:
    nothing, removed = models("list", f"remove --yes {DEFAULT.id}")
    assert nothing == Done(
        0, "", f"{DEFAULT.id}, the default, is not on this machine yet; fetch it with: nproxy models pull\n"
    )
    assert removed == Done(2, "", f"nproxy: no model on this machine is named {DEFAULT.id}; see: nproxy models list\n")


def test_a_model_of_the_hub_comes_and_goes(place: Path) -> None:
    folder = place / "hf" / "hub" / "models--org--name" / "snapshots" / COMMIT
    with model_hub("org/name", FOLDER) as hub:
        first, again, there, lines, asked, gone, after = models(
            *("pull org/name", "pull org/name", LIST, "list", "remove org/name", "remove --yes org/name", LIST), hub=hub
        )
    assert (first, again) == (Done(0, f"{folder}\n", ""), first)
    assert sorted(hub.downloaded) == ["config.json", "model.safetensors", "tokenizer.json"]  # each of them once
    assert names(there) == {"org/name": 5000}
    assert lines.out == f"org/name\t5000\t{folder}\n"
    assert asked == Done(
        2, "", "nproxy: there is no terminal to ask for confirmation; use --yes to remove without confirmation\n"
    )
    assert gone == Done(0, "removed org/name, 5.0 kB\n", "")
    assert names(after) == {}
    assert not folder.parents[1].exists()


def test_several_are_removed_together_or_not_at_all(place: Path) -> None:
    with model_hub("org/name", FOLDER) as hub:
        _, none, there, twice = models(
            "pull org/name", "remove --yes org/name org/other", LIST, "remove --yes org/name org/name", hub=hub
        )
    assert none == Done(2, "", "nproxy: no model on this machine is named org/other; see: nproxy models list\n")
    assert names(there) == {"org/name": 5000}
    assert twice == Done(0, "removed org/name, 5.0 kB\n", "")


def test_files_of_a_repository_are_models_of_their_own(place: Path) -> None:
    small, large = "org/ggufs/small.gguf", "org/ggufs/sub/large.gguf"
    with model_hub("org/ggufs", GGUFS) as hub:
        which, first, second, none, there, _, left = models(
            *("pull org/ggufs", f"pull {small}", f"pull {large}", "pull org/ggufs/none.gguf"),
            *(LIST, f"remove --yes {large}", LIST),
            hub=hub,
        )
    assert which == Done(
        1,
        "",
        f"nproxy: model org/ggufs: the repository holds several models, each in one file; name one: {small}, {large}\n",
    )
    assert Path(first.out.strip()).read_bytes() == GGUFS["small.gguf"]
    assert second.out.endswith("/sub/large.gguf\n")
    assert none == Done(1, "", "nproxy: model org/ggufs/none.gguf: the repository holds no such file\n")
    assert (names(there), names(left)) == ({small: 3004, large: 7004}, {small: 3004})
    assert sum(path.stat().st_size for path in place.rglob("blobs/*")) == 3004
    models(f"remove --yes {small}")
    assert not (place / "hf" / "hub" / "models--org--ggufs").exists()


def test_a_download_that_broke_off_is_taken_up_again(place: Path) -> None:
    """Within the same command from about where it broke off, by the next one from the files that were whole."""
    chunk = 10 * 2**20  # what the library writes at once
    large = {**FOLDER, "model.safetensors": b"w" * (2 * chunk + 2)}
    with model_hub("org/name", large) as hub:
        hub.cut = "model.safetensors"
        done, there = models("pull org/name", LIST, hub=hub)
    assert (done.code, done.err) == (0, "")
    assert hub.resumed == [chunk]
    assert names(there) == {"org/name": 2 * chunk + 16}


def test_offline_is_one_clear_line(place: Path) -> None:
    wanted = ("org/name", "org/name/file.gguf")
    for name, done in zip(wanted, models(*(f"pull {name}" for name in wanted)), strict=True):
        why = f"model {name}: not in the cache, and the hub cannot be reached; see: nproxy models list"
        assert done == Done(1, "", f"nproxy: {why}\n")


def test_a_name_that_can_mean_no_model_is_wrong_use(place: Path) -> None:
    wrong = {
        "gpt-9": "neither smollm2-135m-instruct, nor a file or folder here, nor a hub id such as org/name",
        "./none.gguf": "no such file or folder",
        ".": "is a path on this machine",
    }
    for why, done in zip(wrong.values(), models(*(f"pull {name}" for name in wrong)), strict=True):
        assert (done.code, done.out) == (2, "")
        assert why in done.err


def test_a_home_folder_that_is_not_known_is_wrong_use(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (done,) = models("pull ~nobody-here/x.gguf")
    assert done == Done(2, "", "nproxy: model ~nobody-here/x.gguf: no such file or folder\n")
    monkeypatch.setenv("NPROXY_CACHE", "~nobody-here")
    for done in models("list", "pull", "remove --yes x"):
        assert done == Done(2, "", "nproxy: NPROXY_CACHE=~nobody-here begins with a home folder that is not known\n")


async def test_at_a_terminal_it_asks_first(place: Path) -> None:
    with model_hub("org/name", FOLDER) as hub:
        async with terminal(*nproxy("models", "pull", "org/name"), HF_ENDPOINT=hub.url) as screen:
            assert await screen.ended() == 0
            assert "fetching org/name" in await screen.until(COMMIT)
    async with terminal(*nproxy("models", "list")) as screen:
        assert await screen.ended() == 0
        text = await screen.until("models--org--name")
        assert "5.0 kB" in text
    for answer, left in (("n\n", {"org/name": 5000}), ("y\n", {})):
        async with terminal(*nproxy("models", "remove", "org/name")) as screen:
            await screen.until("Remove it? [y/N]: ")
            assert "org/name, 5.0 kB, in " in screen.text
            screen.type(answer)
            assert await screen.ended() == 0
        assert listed() == left


async def test_control_c_ends_it_at_once_and_leaves_nothing_half(place: Path) -> None:
    """The library would wait for the file that stands still."""
    large = {**FOLDER, "model.safetensors": b"w" * (25 * 2**20)}  # more than the library keeps before it writes
    with model_hub("org/name", large) as hub:
        hub.held = "model.safetensors"
        async with terminal(*nproxy("models", "pull", "org/name"), HF_ENDPOINT=hub.url) as screen:
            await screen.until("10.5/26.2 MB")
            screen.type(CONTROL_C)
            assert await screen.ended() == 130
            await screen.until("nproxy: model org/name: not fetched completely; run the same command again")
            assert b"\x1b[?25h" in screen.raw  # the cursor is back
        assert list(place.rglob("*.incomplete")) == []
        hub.held, hub.downloaded[:] = "", []
        done, there = models("pull org/name", LIST, hub=hub)
    assert done.code == 0
    assert "model.safetensors" in hub.downloaded
    assert len(hub.downloaded) < 3  # what was whole was not fetched again
    assert names(there) == {"org/name": 25 * 2**20 + 14}


async def test_control_c_while_the_index_is_silent_ends_it_too(place: Path) -> None:
    asked = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read()  # until the other side has left

    async with raw_server(silent) as url:
        environment: dict[str, Any] = {"PIP_INDEX_URL": f"{url}/simple", "PIP_CONFIG_FILE": os.devnull}
        async with terminal(*nproxy("models", "pull"), **environment) as screen:
            async with asyncio.timeout(60):
                await asked.wait()
            screen.type(CONTROL_C)
            assert await screen.ended() == 130
            await screen.until("nproxy: stopped")
            assert "Traceback" not in screen.text
    assert [path.name for path in place.rglob("*") if path.is_file()] == [".lock"]
