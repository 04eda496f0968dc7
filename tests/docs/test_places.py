"""Links, headings and files that pages, alerts and the code name exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs import places
from tests.docs.blocks import PAGES, name_of, written
from tests.docs.places import broken_links, missing_files, missing_paths
from tests.real.processes import ROOT

ELSEWHERE = {
    "docs/gguf.md": "in the repository of ggml",
    "docs/gen-ai/gen-ai-metrics.md": "in that of OpenTelemetry's conventions",
    "docs/swagger-ui/swagger-ui-bundle.js": "as a gateway serves it",
    "nproxy/newcomer.py": "made by a test",
    "engine/newcomer.py": "made by a test",
}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_paths_in_code_settings_and_alerts_lead_somewhere() -> None:
    kinds = (".py", ".js", ".mjs", ".html", ".sh", ".yaml", ".yml", ".json", ".toml", ".service", "file", ".md")
    files = [file for file in written(*kinds) if file.parent != Path(__file__).parent]
    missing = {path: name_of(file) for file in files for path in missing_paths(file)}
    assert {path: file for path, file in missing.items() if path not in ELSEWHERE} == {}
    assert set(ELSEWHERE) <= set(missing)


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md"])
def test_the_map_and_the_history_name_what_is_there(page: str) -> None:
    assert missing_files((ROOT / page).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("folder", ["choices", "openai"])
def test_the_page_of_a_folder_lists_each_of_its_modules_once(folder: str) -> None:
    package = ROOT / "nproxy" / folder
    listed = re.findall(r"^ *(\w+) {2,}\S", (package / "__init__.py").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(file.stem for file in package.glob("*.py") if file.stem != "__init__")


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("[a](b.md)", ["b.md"]),
        ("[a](\n  b.md)", ["b.md"]),
        ("[a](here.md#there)", ["here.md#there"]),
        ('[a](#there), <img src="b.png">', ["#there", "b.png"]),
        ("[a][b]\n\n[b]: c.md\n", ["c.md"]),
        ("[a](here.md), [a](here.md#its-head), [a](here.md#its-head-1), [a](https://host/x.md)", []),
        ("```sh\n[a](b.md)\n```\n", []),
    ],
)
def test_a_link_to_nothing_is_seen(text: str, broken: list[str], tmp_path: Path) -> None:
    (tmp_path / "here.md").write_text("# It's `head`!\n\n```sh\n# there\n```\n\n## Its [head](x)\n")
    page = tmp_path / "page.md"
    page.write_text(text)
    assert broken_links(page) == broken


def test_a_path_to_nothing_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "here.md").write_text("# Head\n")
    (tmp_path / "rules.yml").write_text(
        "a: docs/here.md#head\nb: docs/here.md#tail\nc: docs/guides/none.md\nd: docs/NAME.md\n"
    )
    assert missing_paths(tmp_path / "rules.yml") == ["docs/here.md#tail", "docs/guides/none.md"]


def test_a_file_that_is_not_there_is_seen() -> None:
    row = "| `nproxy/gateway/listening.py`, `tls.py`, `admission/`, `client.py`, `plan.py`, `choices/plan.py` | x |"
    assert missing_files(row) == ["plan.py"]
    assert missing_files("`nproxy/gateway/`\n\n`listening.py`, `/openapi.json`") == ["listening.py"]
