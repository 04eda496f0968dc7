"""`nproxy dashboards export`: the files of the tree, from the tree and from a wheel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from nproxy.cli import main

ROOT = Path(__file__).parents[3]
GRAFANA = ROOT / "grafana"
FILES = sorted([*GRAFANA.glob("dashboards/*.json"), *GRAFANA.glob("rules/*.yml")])


def export(*words: str | Path) -> str:
    done = CliRunner().invoke(main, ["dashboards", "export", *map(str, words)])
    assert done.exit_code == 0, done.output
    return done.stdout


def sources(folder: Path) -> list[dict[str, Any]]:
    """The variable of each dashboard that holds its data source."""
    pages = [json.loads(file.read_text()) for file in sorted(folder.glob("dashboards/*.json"))]
    return [one for page in pages for one in page["templating"]["list"] if one["type"] == "datasource"]


def test_the_files_as_they_are(tmp_path: Path) -> None:
    told = export(tmp_path / "new" / "folder")
    written = [tmp_path / "new" / "folder" / file.relative_to(GRAFANA) for file in FILES]
    assert told.split() == [str(file) for file in written]
    assert [file.read_text() for file in written] == [file.read_text() for file in FILES]
    assert len(written) == 7


def test_a_data_source_by_its_name(tmp_path: Path) -> None:
    export(tmp_path, "--datasource", "Mimir (eu)")
    bound = sources(tmp_path)
    assert len(bound) == 5
    assert {one["regex"] for one in bound} == {r"/^Mimir\ \(eu\)$/"}
    assert {one["current"]["value"] for one in bound} == {"Mimir (eu)"}
    assert not any("regex" in one for one in sources(GRAFANA)), "the tree's own are bound to none"


def test_guides_that_are_published_somewhere(tmp_path: Path) -> None:
    export(tmp_path, "--guides", "https://wiki.example/guides/")
    groups = yaml.safe_load((tmp_path / "rules" / "alerts.yml").read_text())["groups"]
    links = [rule["annotations"]["runbook_url"] for group in groups for rule in group["rules"]]
    assert links and all(link.startswith("https://wiki.example/guides/alerts.md#") for link in links)


def test_an_installation_without_them_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nproxy.cli.dashboards.export._TREE", tmp_path / "grafana")
    done = CliRunner().invoke(main, ["dashboards", "export", str(tmp_path / "to")])
    assert done.exit_code == 1
    assert "this installation contains no dashboards" in done.output


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "dashboards").write_text("a file")
    done = CliRunner().invoke(main, ["dashboards", "export", str(tmp_path)])
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == f"nproxy: {tmp_path / 'dashboards'}: File exists\n"


@pytest.mark.timeout(600)
def test_a_wheel_holds_them_and_says_that_it_is_typed(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    subprocess.run([*argv, tmp_path, ROOT], check=True, timeout=580)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "installed")
    installed = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    words = [sys.executable, "-P", "-m", "nproxy", "dashboards", "export", str(tmp_path / "out")]
    subprocess.run(words, cwd=tmp_path, env=installed, check=True, timeout=60)
    packaged = tmp_path / "installed" / "nproxy" / "cli" / "dashboards" / "files"
    for file in FILES:
        name = file.relative_to(GRAFANA)
        assert (packaged / name).read_text() == (tmp_path / "out" / name).read_text() == file.read_text()
    for package in ("nproxy", "engine"):
        assert (tmp_path / "installed" / package / "py.typed").exists(), "type checkers take its annotations for absent"


@pytest.mark.parametrize("guides", ["not-a-url", "https://a b", "https://a/#x", 'https://a/"'])
def test_what_is_no_url_of_guides_is_wrong_use(tmp_path: Path, guides: str) -> None:
    done = CliRunner().invoke(main, ["dashboards", "export", str(tmp_path), "--guides", guides])
    assert done.exit_code == 2
    assert "must be a URL such as" in done.stderr
    assert not list(tmp_path.iterdir())
