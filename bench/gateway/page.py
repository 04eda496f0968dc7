"""The results as a file with the conditions, and as tables: printed, and in docs/performance.md."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.gateway.figures import BARE, Table, added_ms, goals, ratio, value
from bench.gateway.programs import compiler
from bench.goals import Goal
from tests.real.processes import ROOT

RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "performance.md"
NAME = "gateway"
OURS = "nproxy"


def conditions(*, rounds: int, seconds: float, cores: tuple[int, int]) -> dict[str, Any]:
    """Return the conditions under which the figures are taken."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT)
    made_with = subprocess.run([*compiler(), "--version"], capture_output=True, text=True)
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "commit": commit.stdout.strip() or "unknown",
        "cpu": _cpu(Path("/proc/cpuinfo").read_text()),
        "cores": {"gateway": cores[0], "load": cores[1]},
        "kernel": platform.release(),
        "python": platform.python_version(),
        "python_build": sys.version,
        "compiler": made_with.stdout.splitlines()[0],
        **{package: version(package) for package in ("aiohttp", "uvloop", "orjson")},
        "rounds": rounds,
        "seconds": seconds,
        "load_average_before": round(os.getloadavg()[0], 2),
    }


def _cpu(info: str) -> str:
    names = [line.partition(":")[2].strip() for line in info.splitlines() if line.startswith("model name")]
    return f"{len(names)} x {names[0]}" if names else platform.machine()


def path(name: str = NAME) -> Path:
    """Return the path of the record of this name."""
    return RESULTS / f"{name}.json"


def marks(name: str = NAME) -> tuple[str, str]:
    """Return the lines of the page between which its tables are."""
    return f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"


def record(result: Mapping[str, Any], name: str = NAME) -> Path:
    """Write the record of this name, and rewrite its part of the page, if there is one; returns the record's path."""
    path(name).write_text(json.dumps(result, indent=1) + "\n")
    begin, end = marks(name)
    before, found, rest = PAGE.read_text().partition(begin)
    if found:
        PAGE.write_text(before + begin + tables(result) + end + rest.partition(end)[2])
    return path(name)


def kept(result: Mapping[str, Any]) -> Path:
    """Write a result that is not recorded to a new temporary file; returns its path."""
    with tempfile.NamedTemporaryFile("w", prefix="bench-gateway-", suffix=".json", delete=False) as file:
        file.write(json.dumps(result, indent=1) + "\n")
    return Path(file.name)


def tables(result: Mapping[str, Any]) -> str:
    """Return all tables of a record, as Markdown."""
    peers: Mapping[str, Any] = result["peers"]
    table: Table = {name: peer.get("cases", {}) for name, peer in peers.items()}
    rss = {name: peer["rss_mib"] for name, peer in peers.items() if "rss_mib" in peer}
    paces = {name: case["pace"] for name, case in result["cases"].items() if case["pace"]}
    parts = [_taken(result["conditions"]), _one(table, rss, paces), _eight(table, paces), _ratios(table)]
    parts += [_goals(goals(table, rss), goals(table, rss, BARE)), _dashes(peers), _settings(peers)]
    return "\n".join(part for part in parts if part)


def _taken(taken: Mapping[str, Any]) -> str:
    machine = f"{taken['cpu']}, Linux {taken['kernel']}, Python {taken['python']}"
    rounds = f"medians of {taken['rounds']} rounds of {taken['seconds']:g} s, in turns"
    return (
        f"{taken['date']}, commit {taken['commit']}, {machine}; {rounds}; "
        f"load average before: {taken['load_average_before']}. \\*: the load's core was used up, and is the limit. "
        "~: other processes ran on the machine, and the gateway got less than a core: CPU times say more than rates. "
        "^: in most rounds the host withheld more than a twentieth of the processors' time, also when repeated.\n"
    )


def _one(table: Table, rss: Mapping[str, float], paces: Mapping[str, int]) -> str:
    pace = f"paced, 128 at {paces['paced']}/s" if "paced" in paces else "paced"
    long = any(value(table, name, "long-64", "rate") for name in table)  # older records lack it
    head = (
        "n=1",
        "requests/s, 16",
        "64 connections",
        "us each",
        *(("8 kB asked", "us each") if long else ()),
        "burst chunks/s",
        "us each",
        f"{pace}: chunks/s",
        "us each",
    )
    rows = [
        (
            name,
            _rate(table, name, "whole-16"),
            _rate(table, name, "whole-64"),
            _cost(table, name, "whole-64"),
            *((_rate(table, name, "long-64"), _cost(table, name, "long-64")) if long else ()),
            _rate(table, name, "burst"),
            _cost(table, name, "burst"),
            _rate(table, name, "paced"),
            _cost(table, name, "paced"),
            _number(added_ms(table, name, "first"), "{:+.2f} ms") if name != "direct" else _first(table),
            _number(rss.get(name), "{:.0f}"),
        )
        for name in table
    ]
    return markdown((*head, "first word", "RSS, MiB"), rows)


def _eight(table: Table, paces: Mapping[str, int]) -> str:
    cases = ("n8-whole", "n8-burst", "n8-paced", "n8-first")
    names = [name for name in table if any(value(table, name, case, "rate") for case in cases)]
    pace = f"paced, 32 x 8 at {paces['n8-paced']}/s" if "n8-paced" in paces else "paced"
    head = (
        "n=8",
        "whole: choices/s",
        "us each",
        "burst chunks/s",
        "us each",
        f"{pace}: chunks/s",
        "us each",
        "first word",
        "of the last choice",
    )
    rows = [
        (
            name if name.startswith(OURS) else f"{name}, the same legs unmerged",
            _rate(table, name, "n8-whole"),
            _cost(table, name, "n8-whole"),
            _rate(table, name, "n8-burst"),
            _cost(table, name, "n8-burst"),
            _rate(table, name, "n8-paced"),
            _cost(table, name, "n8-paced"),
            *(
                _number(added_ms(table, name, "n8-first", figure), "{:+.2f} ms") if name.startswith(OURS) else "-"
                for figure in ("first_ms", "last_first_ms")
            ),
        )
        for name in names
    ]
    return markdown(head, rows) if rows else ""


def _ratios(table: Table) -> str:
    head = (f"{OURS} against", "requests/s, 16", "64 connections", "CPU each", "burst chunks/s", "paced: CPU each")
    of = (("whole-16", "rate"), ("whole-64", "rate"), ("whole-64", "cpu_us"), ("burst", "rate"), ("paced", "cpu_us"))
    rows = [
        (name, *(_number(ratio(table, (OURS, name), (case, case), figure), "{:.2f}x") for case, figure in of))
        for name in table
        if not name.startswith(OURS) and name != "direct"
    ]
    return markdown(head, rows) if OURS in table and rows else ""


def _goals(ours: Sequence[Goal], bare: Sequence[Goal]) -> str:
    """Return the goals, and the figures of the relay without features for the same goals."""
    rows = [
        (goal.says, *map(goal.shown, (goal.least, goal.aim, goal.found, its.found)), goal.verdict)
        for goal, its in zip(ours, bare, strict=True)
        if goal.found is not None
    ]
    return markdown(("measure", "at least", "aim", "found", f"{BARE}'s", "holds"), rows) if rows else ""


def _dashes(peers: Mapping[str, Any]) -> str:
    """Return the reasons for missing figures."""
    missing: dict[tuple[str, str], list[str]] = {}  # (reason, cases): gateways
    for name, peer in peers.items():
        cases: dict[str, list[str]] = {peer["reason"]: []} if "reason" in peer else {}
        for case, found in peer.get("cases", {}).items():
            if "reason" in found:
                cases.setdefault(found["reason"], []).append(case)
        for reason, some in cases.items():
            missing.setdefault((reason, f" ({', '.join(some)})" if some else ""), []).append(name)
    lines = [f"- {', '.join(names)}: {reason}{some}" for (reason, some), names in missing.items()]
    return "\n".join(["No figure:", "", *lines, ""]) if lines else ""


def _settings(peers: Mapping[str, Any]) -> str:
    lines = []
    for name, peer in peers.items():
        if "settings" in peer:
            file = peer["settings"]
            lines.append(f"- {name} {peer.get('version', '')}: [{file}](../bench/gateway/{file})")
    return "\n".join(["What was run, and how:", "", *lines, ""])


def _rate(table: Table, peer: str, case: str) -> str:
    found = table.get(peer, {}).get(case, {})
    marks = {"load": "\\*", "machine": "~"}.get(found.get("limit", ""), "") + ("^" if found.get("disturbed") else "")
    return _number(value(table, peer, case, "rate"), "{:,.0f}") + marks


def _cost(table: Table, peer: str, case: str) -> str:
    return "-" if peer == "direct" else _number(value(table, peer, case, "cpu_us"), "{:,.1f}")


def _first(table: Table) -> str:
    return _number(value(table, "direct", "first", "first_ms"), "{:.2f} ms")


def _number(figure: float | None, form: str) -> str:
    return "-" if figure is None else form.format(figure)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
