"""Where the figures go: JSON in bench/results/, tables in docs/performance.md between two marks."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.real.processes import ROOT

RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "performance.md"
ISA = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")
"""The CPU features that decide how fast a product is."""


def conditions() -> dict[str, Any]:
    """Return the conditions of the measurement."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=ROOT)
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "commit": commit.stdout.strip() or "unknown",
        **cpu(Path("/proc/cpuinfo").read_text()),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "load_average_before": round(os.getloadavg()[0], 2),
    }


def cpu(info: str) -> dict[str, Any]:
    """Return the CPU's name and its features among ISA, from the text of /proc/cpuinfo.

    If the text has no name, the machine's type stands for it; if it has no flags, the list is empty.
    """
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in info.splitlines())}
    flags = fields.get("flags", "").split()
    return {"cpu": fields.get("model name", platform.machine()), "has": [flag for flag in ISA if flag in flags]}


def taken(told: Mapping[str, Any]) -> str:
    """Return the conditions as a line to put above a table."""
    has = f" ({', '.join(told['has'])})" if told["has"] else ""
    machine = f"{told['cores']} cores of {told['cpu']}{has}, Linux {told['kernel']}, Python {told['python']}"
    return (
        f"{told['date']}, commit {told['commit']}; {machine}, torch {told['torch']}; "
        f"load average before: {told['load_average_before']}.\n\n"
    )


def family(told: Mapping[str, Any]) -> str:
    """Return the suffix of a record's name and of its mark on the page.

    It is "-amx" for processors that multiply bfloat16 in tiles, "-bf16" for those that do it in vectors, empty for
    others with AVX-512, and "-avx2" for those without.
    """
    known = {"amx_bf16": "-amx", "avx512_bf16": "-bf16", "avx512f": ""}
    return next((suffix for feature, suffix in known.items() if feature in told["has"]), "-avx2")


def write(name: str, result: Mapping[str, Any]) -> None:
    """Write a result to bench/results/NAME.json."""
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")


def put(mark: str, text: str, page: Path = PAGE) -> None:
    """Write `text` between <!-- MARK --> and <!-- end of MARK -->, replacing what is there.

    Raises ValueError if the page lacks one of the marks.
    """
    page.write_text(between(page.read_text(), mark, text))


def between(page: str, mark: str, text: str) -> str:
    """Return the page with the text between its marks replaced; raises ValueError if a mark is missing."""
    begin, end = f"<!-- {mark} -->\n", f"<!-- end of {mark} -->\n"
    before, found, rest = page.partition(begin)
    _, ended, behind = rest.partition(end)
    if not (found and ended):
        raise ValueError(f"the page has no line {(end if found else begin).strip()}")
    return before + begin + text + end + behind
