"""The dashboards that are checked in: written by the code, whole, and about metrics that exist."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.messages import Ready
from engine.server.metrics import Metrics as EngineMetrics
from grafana.source.__main__ import FOLDER, texts, write
from nproxy.telemetry.metrics import Metrics, ParentMetrics

GRAFANA = FOLDER.parent
PAGES: dict[str, dict[str, Any]] = {file.stem: json.loads(file.read_text()) for file in sorted(FOLDER.glob("*.json"))}
PANELS = [
    pytest.param(panel, id=f"{name}-{panel['title']}")
    for name, page in PAGES.items()
    for panel in page["panels"]
    if panel["type"] != "row"
]
CORE = {"timeseries", "stat", "table", "heatmap", "state-timeline", "bargauge"}
RECORDED = {
    rule["record"]
    for group in yaml.safe_load((GRAFANA / "rules" / "recording.yml").read_text())["groups"]
    for rule in group["rules"]
}


def exposed() -> set[str]:
    """The names of all series that a gateway and its engine may tell."""
    engine = EngineMetrics(Ready(1, 1, 1, 1, 1, frozenset(), "cpu", "float32"))
    telling = [Metrics(version="0", upstreams=["u"], models=["m"]).registry, ParentMetrics("0").registry]
    text = engine.exposition().decode()
    families = [(family.name, family.type) for one in telling for family in one.collect()]
    families += [(name.removesuffix("_total"), kind) for name, kind in re.findall(r"# TYPE (\S+) (\w+)", text)]
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
    return {name + suffix for name, kind in families for suffix in suffixes[kind]}


def test_they_are_what_the_code_writes(tmp_path: Path) -> None:
    assert {file.name: file.read_text() for file in FOLDER.iterdir()} == texts(), "make dashboards"
    (tmp_path / "gone.json").write_text("{}")
    write(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == texts().keys()


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_what_all_dashboards_have(page: dict[str, Any]) -> None:
    variables = {one["name"]: one for one in page["templating"]["list"]}
    assert [*variables][:5] == ["datasource", "job", "instance", "upstream", "model"]
    assert variables["datasource"]["type"] == "datasource" and variables["datasource"]["query"] == "prometheus"
    for one in list(variables.values())[1:5]:
        assert one["multi"] and one["includeAll"] and one["current"]["text"] == "All"
    (link,) = page["links"]
    assert (link["type"], link["tags"], link["includeVars"], link["keepTime"]) == (
        "dashboards",
        page["tags"],
        True,
        True,
    )
    assert page["graphTooltip"] == 1
    assert page["schemaVersion"] == 36, "Grafana 10.1's; every later one lifts it to its own"
    assert page["panels"][0]["type"] == "row"


def test_their_names_differ() -> None:
    assert len({page["uid"] for page in PAGES.values()}) == len({page["title"] for page in PAGES.values()}) == 5


@pytest.mark.parametrize("panel", PANELS)
def test_what_all_panels_have(panel: dict[str, Any]) -> None:
    assert panel["type"] in CORE
    assert panel["title"] and panel["description"].endswith((".", "?"))
    assert len(panel["description"]) > 60, "it says what to do, too"
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["targets"]
    assert {one["datasource"]["uid"] for one in (panel, *panel["targets"])} == {"${datasource}"}


@pytest.mark.parametrize("panel", PANELS)
def test_what_they_ask_for(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        expression = target["expr"]
        assert set(re.findall(r"\bnproxy_\w+", re.sub(r"\b\w+:\w+:\w+", "", expression))) <= exposed()
        assert set(re.findall(r"\b\w+:\w+:\w+", expression)) <= RECORDED
        assert set(re.findall(r"\[([^\]]+)\]", expression)) <= {"$__rate_interval", "$__range"}
        for selector in re.findall(r"\{(.*?)\}", expression):
            assert 'job=~"$job"' in selector
        if "histogram_quantile" in expression or panel["type"] == "heatmap":
            assert "sum by (le" in expression, "buckets are added up by their bounds"
        named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        kept = {label for labels in re.findall(r"\bby \(([^)]+)\)", expression) for label in labels.split(", ")}
        assert named <= kept, "a legend names labels that were summed away"


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_no_panel_covers_another(page: dict[str, Any]) -> None:
    places = [(panel["title"], panel["gridPos"]) for panel in page["panels"]]
    assert len({panel["id"] for panel in page["panels"]}) == len(places)
    for name, place in places:
        assert place["x"] + place["w"] <= 24, name
    for (one, a), (other, b) in combinations(places, 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        apart = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert beside or apart, (one, other)
