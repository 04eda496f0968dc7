"""Every expression of every panel, variable, rule and alert returns data, from real gateways and a real Prometheus."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.real.processes import ROOT
from tests.system.monitored import Monitored
from tests.system.prometheus import Prometheus, without_bounds
from tests.system.tools import PROMTOOL, needed

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]

GRAFANA = ROOT / "grafana"
ROUNDS = 20

INFINITE = {"Capabilities": "n is +Inf where no limit showed, as of the engine: the panel says so"}
"""Panels whose values may be infinite, and why."""

QUIET = {
    "NproxyAbsent": "Prometheus would have to know of no gateway",
    "NproxyAnomalies": "half of all calls would have to be odd for half an hour",
    "NproxyEngineDown": "it would have to be down for ten minutes",
    "NproxyEventLoopLag": "a loop that is late by a tenth of a second depends on the machine's load",
    "NproxyFilesShort": "the limit on open files would have to be reached",
    "NproxyFirstTokenSlow": "a first token after ten seconds would take ten seconds",
    "NproxyKvCacheFull": "it is fleeting: what waits runs as soon as something ends",
    "NproxyLeakedCalls": "there is no known way to leak a call",
    "NproxyLogLinesDropped": "10,000 lines would have to wait for a reader",
    "NproxyNoAnswers": "all clients of a model would have to leave, ten of them",
    "NproxyNoWorkers": "all workers would have to die at once and stay away",
    "NproxyPreemptions": "one in ten seconds for ten minutes",
    "NproxyQueueSlow": "a wait of five seconds would take five seconds",
    "NproxyReplicaSlow": "a replica would have to take seconds for each call",
}
"""Alerts without a fault here, and why. promtool's tests make them fire, and their expressions return data here."""


EMPTY = {
    "NproxyAbsent": "it gives something where there is nothing",
    "NproxyNoAnswers": "no client leaves, and no server answers 429",
}
"""Alerts whose expressions return nothing while all is well, and why."""


def rules() -> Iterator[dict[str, Any]]:
    for file in sorted(GRAFANA.glob("rules/*.yml")):
        for group in yaml.safe_load(file.read_text())["groups"]:
            yield from group["rules"]


def filled_in(expression: str, variables: Mapping[str, str]) -> str:
    """Return the expression as Grafana sends it with All chosen: `.*`, which is the variables' own value for it."""
    known = {"__rate_interval": "5m", "__range": "1h", **variables}
    return re.sub(r"\$(\w+)", lambda name: known[name[1]], expression)


def panels() -> Iterator[tuple[str, str, str]]:
    """Yield dashboard, panel and expression."""
    for file in sorted(GRAFANA.glob("dashboards/*.json")):
        page = json.loads(file.read_text())
        variables = {one["name"]: one.get("allValue") or one.get("query", "") for one in page["templating"]["list"]}
        for panel in page["panels"]:
            for target in panel.get("targets", ()):
                yield page["title"], panel["title"], filled_in(target["expr"], variables)


def flaws(prometheus: Prometheus) -> dict[str, str]:
    """Return every expression that returns nothing or something that is not finite, with the flaw."""
    asked = {f"{page} / {panel}: {text}": text for page, panel, text in panels() if panel not in INFINITE}
    for rule in rules():
        if "record" in rule:
            asked[f"rule {rule['record']}"] = rule["expr"]
            asked[f"recorded {rule['record']}"] = rule["record"]
        elif rule["alert"] not in EMPTY:
            asked[f"alert {rule['alert']}"] = without_bounds(rule["expr"])
    found = {name: prometheus.flaw(text) for name, text in asked.items()}
    found |= {name: "nothing" for page, name, text in panels() if name in INFINITE and not prometheus.values(text)}
    return {name: flaw for name, flaw in found.items() if flaw}


def unlisted(prometheus: Prometheus) -> list[str]:
    """Return the variables without a value."""
    found = []
    for file in sorted(GRAFANA.glob("dashboards/*.json")):
        for variable in json.loads(file.read_text())["templating"]["list"]:
            if variable["type"] != "query":
                continue
            query = filled_in(variable["query"]["query"], dict.fromkeys(("job", "instance", "upstream"), ".*"))
            asked = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
            assert asked is not None, query
            series = prometheus.get("series", **{"match[]": asked[1]})
            if not {one[asked[2]] for one in series if one.get(asked[2])}:
                found.append(f"{file.stem}: {query}")
    return found


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[tuple[Monitored, Prometheus]]:
    async with AsyncExitStack() as stack:
        monitored = await stack.enter_async_context(Monitored.started(tmp_path))
        targets = {**monitored.targets, "down": "127.0.0.1:9"}
        running = Prometheus.started(targets, tmp_path)
        yield monitored, await asyncio.to_thread(stack.enter_context, running)


async def test_everything_gives_data(watched: tuple[Monitored, Prometheus]) -> None:
    monitored, prometheus = watched
    for _ in range(ROUNDS):  # a new counter has no increase yet; it has one in the next round
        await monitored.load()
        await asyncio.to_thread(prometheus.scraped, 2)
        if not (left := await asyncio.to_thread(flaws, prometheus)):
            break
    assert left == {}
    assert unlisted(prometheus) == []

    monitored.break_settings()
    await monitored.kill_a_worker_and_the_engine()
    missing = {rule["alert"] for rule in rules() if "alert" in rule} - QUIET.keys()
    for _ in range(ROUNDS):  # some alerts need more failures than a round or two cause
        await monitored.load()
        await asyncio.to_thread(prometheus.scraped, 2)
        if not (missing := missing - await asyncio.to_thread(prometheus.alerts)):
            break
    assert missing == set(), "not alerted"


def test_every_alert_is_known() -> None:
    assert QUIET.keys() <= {rule["alert"] for rule in rules() if "alert" in rule}


@pytest.mark.parametrize("words", [("check", "rules"), ("test", "rules"), ("check", "config")], ids=" ".join)
def test_promtool_is_content(words: tuple[str, str]) -> None:
    files = {"check rules": "rules/*.yml", "test rules": "tests/*.yml", "check config": "prometheus.yml"}
    named = [str(file) for file in sorted(GRAFANA.glob(files[" ".join(words)]))]
    done = subprocess.run([needed(PROMTOOL), *words, *named], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert named and "FAILED" not in done.stdout
