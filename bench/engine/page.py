"""Where figures go: JSON in bench/results/, tables into docs/performance.md between two marks."""

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
"""What decides how fast a product is, where the CPU has it."""


def conditions() -> dict[str, Any]:
    """What the figures are taken under."""
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
    """The CPU's name and what it has of ISA, from the text of /proc/cpuinfo; empty where that says neither."""
    fields = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in info.splitlines())}
    flags = fields.get("flags", "").split()
    return {"cpu": fields.get("model name", platform.machine()), "has": [flag for flag in ISA if flag in flags]}


def taken(told: Mapping[str, Any]) -> str:
    """The conditions as a line above a table."""
    has = f" ({', '.join(told['has'])})" if told["has"] else ""
    machine = f"{told['cores']} cores of {told['cpu']}{has}, Linux {told['kernel']}, Python {told['python']}"
    return (
        f"{told['date']}, commit {told['commit']}; {machine}, torch {told['torch']}; "
        f"load average before: {told['load_average_before']}.\n\n"
    )


def family(told: Mapping[str, Any]) -> str:
    """What stands behind a record's name and its mark on the page: "-bf16" for processors that multiply bfloat16,
    "-avx2" for those without AVX-512."""
    if {"avx512_bf16", "amx_bf16"} & set(told["has"]):
        return "-bf16"
    return "" if "avx512f" in told["has"] else "-avx2"


def write(name: str, result: Mapping[str, Any]) -> None:
    """Keep a result as bench/results/NAME.json."""
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")


def put(mark: str, text: str, page: Path = PAGE) -> None:
    """Write `text` between <!-- MARK --> and <!-- end of MARK -->, in place of what stands there.

    Raises ValueError where the page lacks one of them.
    """
    page.write_text(between(page.read_text(), mark, text))


def between(page: str, mark: str, text: str) -> str:
    """The page with that done."""
    begin, end = f"<!-- {mark} -->\n", f"<!-- end of {mark} -->\n"
    before, found, rest = page.partition(begin)
    _, ended, behind = rest.partition(end)
    if not (found and ended):
        raise ValueError(f"the page has no line {(end if found else begin).strip()}")
    return before + begin + text + end + behind
