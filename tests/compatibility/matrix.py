"""Probes a running server, puts nproxy in front of it with the findings, and plays the cases in every setting."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import yaml

from nproxy.cli.probe import client
from nproxy.cli.probe.entry import as_yaml
from nproxy.cli.probe.findings import Report
from nproxy.cli.probe.interview import Plan, conduct, interview
from nproxy.cli.probe.sampling import SPECIAL
from nproxy.cli.target import Target
from nproxy.config.replicas import parse_address
from tests.compatibility.cases import CASES, Case
from tests.compatibility.deployment import Deployment, NotApplicable, alias
from tests.compatibility.record import SETTINGS, Outcome, Record, Setting
from tests.real.counting_proxy import counting_proxy
from tests.real.processes import nproxy

ANSWER_SECONDS = 120.0
"""The limit for one answer, from a server on few cores."""
REASON_LENGTH = 300

Entry = Mapping[str, Any]


class Probed(NamedTuple):
    """The findings of `nproxy probe`, and the entry that it writes with --yaml."""

    report: Report
    entry: str


def probe(server: str, model: str) -> Probed:
    """Probe the server at this address (without a path)."""
    url = f"{server}/v1"
    replica, plan = parse_address(url), Plan(nonce=secrets.token_hex(4), model=model)
    with client.opened(Target(replica), ANSWER_SECONDS) as asking:
        report = conduct(url, interview(plan), asking.ask)
    return Probed(report, as_yaml(report, replica, None, plan.widest))


def examine(server: str, model: str, probed: Probed, log: Path, names: Collection[str] = ()) -> Record:
    """Play cases with the server at this address (without a path). names: of the cases; if empty, all."""
    report, entry = probed
    [upstream] = yaml.safe_load(entry)["upstreams"]
    special = report["chat", "sampling"].value
    extra = SPECIAL if special in SPECIAL else {}
    with counting_proxy(server) as counts:
        file = log.with_suffix(".yaml")
        file.write_text(yaml.safe_dump(config(upstream, counts.url, model)))
        with nproxy("--config", str(file), log=log, ready="/health") as gateway:
            http = httpx.AsyncClient(timeout=ANSWER_SECONDS, trust_env=False)
            deployed = Deployment(http, gateway.url, server, model, "auto", report.sections, extra, counts)
            outcomes = asyncio.run(_play(deployed, settings(upstream), names or CASES))
    return Record(findings=report.sections, entry=_anywhere(entry), outcomes=outcomes)


def config(entry: Entry, url: str, model: str) -> dict[str, Any]:
    """Return one upstream per setting, all as the probe's entry but for `n`, at the address of the counting proxy."""
    return {
        "upstreams": [
            {
                **entry,
                "name": setting,
                "replicas": [f"{url}/v1"],
                "models": {alias(setting): model},
                "n": entry["n"] if setting == "native" else setting,
            }
            for setting in settings(entry)
        ]
    }


def settings(entry: Entry) -> tuple[Setting, ...]:
    """Return the settings that this entry allows: no native without native n."""
    native = entry["n"] == "native" or isinstance(entry["n"], dict)
    return tuple(setting for setting in SETTINGS if native or setting != "native")


def _anywhere(entry: str) -> str:
    """Return the entry with a usual port instead of the free port that the server was given."""
    return re.sub(r"(127[.-]0[.-]0[.-]1[:-])\d+", r"\g<1>8000", entry)


async def _play(
    deployed: Deployment, there: Sequence[Setting], names: Collection[str]
) -> dict[str, dict[Setting, Outcome]]:
    outcomes: dict[str, dict[Setting, Outcome]] = {}
    async with deployed.http:
        for case in (case for name, case in CASES.items() if name in names):
            went = outcomes[case.name] = {}
            for setting in (setting for setting in there if setting in case.settings):
                went[setting] = outcome = await play(case, deployed.at(setting))
                print(f"  {case.name:<24} {setting:<8} {outcome.verdict} {outcome.reason}", file=sys.stderr, flush=True)
    return outcomes


async def play(case: Case, deployed: Deployment) -> Outcome:
    """Play one case in one setting."""
    if (reason := case.why_not(deployed)) is not None:
        return Outcome("not applicable", reason)
    try:
        await case.play(deployed)
    except NotApplicable as error:
        return Outcome("not applicable", str(error))
    except (AssertionError, httpx.HTTPError, json.JSONDecodeError, LookupError) as error:
        return Outcome("fail", _told(error))
    return Outcome("pass")


def _told(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    told = text if isinstance(error, AssertionError) else f"{type(error).__name__}: {text}"
    return told if len(told) <= REASON_LENGTH else f"{told[:REASON_LENGTH]}…"
