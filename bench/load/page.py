"""Figures as files with their conditions, and the table of docs/load.md made from them."""

from __future__ import annotations

import datetime
import json
import os
import platform
import resource
import subprocess
from importlib.metadata import version
from typing import Any

from bench.load.stand import cores
from tests.real.processes import ROOT

RESULTS = ROOT / "bench" / "results" / "load"
PAGE = ROOT / "docs" / "load.md"
_BEGIN, _END = "<!-- figures -->\n", "<!-- end of figures -->\n"


def conditions() -> dict[str, Any]:
    """Return the conditions under which the figures were taken."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT)
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "commit": commit.stdout.strip() or "unknown",
        "cores": cores(),
        "machine": platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **{package: version(package) for package in ("aiohttp", "uvloop", "orjson")},
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        "load_average_before": round(os.getloadavg()[0], 2),
    }


def write(name: str, result: dict[str, Any]) -> None:
    """Write a bar's figures, and update the page's table."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    text = PAGE.read_text()
    before, _, rest = text.partition(_BEGIN)
    _, _, behind = rest.partition(_END)
    PAGE.write_text(before + _BEGIN + table() + _END + behind)


def table() -> str:
    """Return the table of results, a row for each bar, from the result files."""
    rows = ["| bar | holds | figures | commit, load average before |", "|---|---|---|---|"]
    for file in sorted(RESULTS.glob("*.json")):
        result = json.loads(file.read_text())
        where = f"{result['conditions']['commit']}, {result['conditions']['load_average_before']}"
        link = f"[{file.stem}](../bench/results/load/{file.name})"
        broken = [what for what, held in result["checks"].items() if not held]
        rows.append(f"| {link} | {'**no**: ' + '; '.join(broken) if broken else 'yes'} | {result['line']} | {where} |")
    return "\n".join(rows) + "\n"
