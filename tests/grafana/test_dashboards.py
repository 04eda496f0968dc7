"""The dashboards that are checked in: written by the code, whole, and about metrics that exist."""

from __future__ import annotations

import json
import re
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

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


def asked_for(expression: str) -> set[str]:
    """The names of series in an expression; those of recording rules are none."""
    return set(
        re.findall(r"\b(?:nproxy|gen_ai)_\w+(?![\w=])", re.sub(r"\b\w+:\w+:\w+|{.*?}|by \(.*?\)", "", expression))
    )


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
        assert asked_for(expression) <= exposed()
        assert set(re.findall(r"\b\w+:\w+:\w+", expression)) <= RECORDED
        assert set(re.findall(r"\[([^\]]+)\]", expression)) <= {"$__rate_interval", "$__range"}
        for selector in re.findall(r"\{(.*?)\}", expression):
            assert 'job=~"$job"' in selector
        if "histogram_quantile" in expression or panel["type"] == "heatmap":
            assert "sum by (le" in expression, "buckets are added up by their bounds"
        named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        kept = {label for labels in re.findall(r"\bby \(([^)]+)\)", expression) for label in labels.split(", ")}
        assert named <= kept, "a legend names labels that were summed away"


UNSHOWN = {
    "gen_ai_client_operation_time_per_output_chunk_seconds": "nproxy_inter_token_seconds is the same",
    "gen_ai_client_token_usage": "nproxy_tokens_total is the same by kinds; how long single prompts are, no panel asks",
    "gen_ai_server_request_duration_seconds": "nproxy_request_seconds is the same",
    "gen_ai_server_time_to_first_token_seconds": "nproxy_time_to_first_token_seconds is the same",
    "nproxy_config_reloads_total": "how often settings are read is nothing to look at; a refused one is an alert",
    "nproxy_inflight_requests": "requests of any width are no measure of the load: choices in flight are",
    "nproxy_key_requests_total": "requests of any width are no measure of use: tokens by key are",
}
"""Metrics without a panel, and why."""


def test_every_metric_stands_on_a_panel() -> None:
    asked = {name for page in PAGES.values() for panel in page["panels"] for name in _of_panel(panel)}
    assert {_family(name) for name in exposed()} - {_family(name) for name in asked} == UNSHOWN.keys()


def _of_panel(panel: dict[str, Any]) -> set[str]:
    return {name for target in panel.get("targets", ()) for name in asked_for(target["expr"])}


def _family(name: str) -> str:
    return re.sub(r"_(bucket|sum|count)$", "", name)


@pytest.mark.parametrize("panel", PANELS)
def test_no_traffic_is_no_nan(panel: dict[str, Any]) -> None:
    """Prometheus has NaN for 0 / 0 and for a quantile of nothing, and a number of it frightens who is on duty."""
    for target in panel["targets"]:
        expression = target["expr"]
        assert expression.count("histogram_quantile") == expression.endswith(" >= 0")
        divisors = re.findall(r" / (?!\d)(.*)", expression)
        assert all("> 0)" in divisor for divisor in divisors)
        if panel["type"] == "stat" and (divisors or "histogram_quantile" in expression):
            assert panel["fieldConfig"]["defaults"].get("noValue") or "nproxy_engine_blocks" in expression


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_no_row_is_empty(page: dict[str, Any]) -> None:
    kinds = [panel["type"] for panel in page["panels"]]
    assert ("row", "row") not in {*pairwise(kinds)} and kinds[-1] != "row"


@pytest.mark.parametrize("name", PAGES)
def test_grafanas_own_types_read_all_of_it(name: str) -> None:
    read = Dashboard.from_json(PAGES[name])
    assert json.loads(JSONEncoder().encode(read)) == PAGES[name]


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
