"""What the guides show is so: their settings are good ones, their metrics exist, and their links lead somewhere."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from nproxy.config import from_message, read_keys
from nproxy.telemetry.metrics import Metrics, ParentMetrics

ROOT = Path(__file__).resolve().parents[1]
FLEET, README = ROOT / "docs" / "fleet.md", ROOT / "README.md"
GUIDES = (FLEET, README)

SETTINGS = [
    pytest.param(block, id=f"{guide.stem}-{number}")
    for guide in GUIDES
    for number, block in enumerate(re.findall(r"```yaml\n(.*?)```", guide.read_text(), re.DOTALL))
    if not block.startswith("# keys.yaml")
]


@pytest.mark.parametrize("block", SETTINGS)
def test_the_settings_of_the_guides_are_good(block: str) -> None:
    data: Any = yaml.safe_load(textwrap.dedent(block))
    if block.startswith(" "):  # keys of an upstream
        data = {"upstreams": [{"name": "fleet", "replicas": ["http://10.0.0.1:8000/v1"], **data}]}
    secrets = dict.fromkeys(re.findall(r"\$\{\w+\}", block), "secret-of-the-guide")
    from_message({"data": data, "folder": str(ROOT), "secrets": secrets})


def test_the_keys_file_of_the_guide_is_good(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(# keys\.yaml\n.*?)```", FLEET.read_text(), re.DOTALL)
    (tmp_path / "keys.yaml").write_text(re.sub(r"sha256:(\w+)\.\.\.", lambda m: f"sha256:{m[1]:0<64}", block))
    assert [key.name for key in read_keys(tmp_path / "keys.yaml")] == ["team-a"]


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_the_metrics_of_the_guides_exist(guide: Path) -> None:
    kept = (Metrics(version="0", upstreams=["u"], models=["m"]), ParentMetrics("0"))
    known = {family.name for metrics in kept for family in metrics.registry.collect()}
    named = set(re.findall(r"\bnproxy_(?!engine_)\w+", guide.read_text()))
    assert {name for name in named if re.sub(r"_(total|count|sum|bucket)$", "", name) not in known} == set()


@pytest.mark.parametrize("page", sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]), ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        file, _, anchor = target.partition("#")
        if "://" in target:
            continue
        there = (page.parent / file).resolve() if file else page
        if not there.exists() or (anchor and there.suffix == ".md" and anchor not in _anchors(there)):
            broken.append(target)
    assert broken == []


def _anchors(page: Path) -> set[str]:
    """Headings as GitHub links to them."""
    headings = re.findall(r"(?m)^#+ (.+)$", page.read_text())
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_map_leads_to_files() -> None:
    named = set(re.findall(r"`([a-z_/.]+(?:\.py|/))`", (ROOT / "ARCHITECTURE.md").read_text()))
    folders = [path for room in ("nproxy", "engine", "bench", "deploy", "docs") for path in ROOT.glob(f"{room}/**/*")]
    there = {f"/{path.relative_to(ROOT)}" + "/" * path.is_dir() for path in (*ROOT.glob("*"), *folders)}
    assert {name for name in named if not any(path.endswith(f"/{name}") for path in there)} == set()
