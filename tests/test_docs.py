"""What the pages name is there: metrics, other pages, files. What they give to type, tests/docs types."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from nproxy.telemetry.metrics import Metrics, ParentMetrics
from tests.docs.blocks import PAGES, name_of

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("guide", PAGES, ids=name_of)
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
