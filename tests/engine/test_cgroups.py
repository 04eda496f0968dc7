"""What control groups allow: the least of the own group's and of those around it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from engine.cgroups import cpus, memory_bytes

MIB = 1 << 20


def laid_out(folder: Path, files: Mapping[str, str], own: str) -> tuple[Path, Path]:
    """A tree of groups with these files, and the process's own lines."""
    for name, text in files.items():
        file = folder / "groups" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    (folder / "own").write_text(own)
    return folder / "groups", folder / "own"


@pytest.mark.parametrize(
    ("files", "own", "least"),
    [
        ({"a/b/memory.max": str(32 * MIB), "a/memory.max": str(64 * MIB)}, "0::/a/b\n", 32 * MIB),
        ({"a/b/memory.max": "max", "a/memory.max": str(64 * MIB)}, "0::/a/b\n", 64 * MIB),
        ({"memory.max": str(32 * MIB)}, "0::/\n", 32 * MIB),
        ({"memory.max": str(32 * MIB)}, "0::/not/seen/from/here\n", 32 * MIB),
        ({"memory/a/memory.limit_in_bytes": str(16 * MIB)}, "12:pids:/a\n4:cpu,memory:/a\n0::/\n", 16 * MIB),
        ({"a/memory.max": "max"}, "0::/a\n", None),
        ({}, "0::/\n", None),
    ],
    ids=["own", "around", "container", "outside", "v1", "max", "none"],
)
def test_the_least_memory(tmp_path: Path, files: Mapping[str, str], own: str, least: int | None) -> None:
    assert memory_bytes(*laid_out(tmp_path, files, own)) == least


@pytest.mark.parametrize(
    ("files", "own", "least"),
    [
        ({"a/b/cpu.max": "150000 100000", "a/cpu.max": "max 100000"}, "0::/a/b\n", 1.5),
        ({"a/b/cpu.max": "max 100000", "a/cpu.max": "50000 100000"}, "0::/a/b\n", 0.5),
        ({"cpu/a/cpu.cfs_quota_us": "300000", "cpu/a/cpu.cfs_period_us": "100000"}, "3:cpu,cpuacct:/a\n", 3.0),
        ({"cpu/a/cpu.cfs_quota_us": "-1", "cpu/a/cpu.cfs_period_us": "100000"}, "3:cpu,cpuacct:/a\n", None),
        ({}, "0::/\n", None),
    ],
    ids=["own", "around", "v1", "v1 none", "none"],
)
def test_the_least_processor_time(tmp_path: Path, files: Mapping[str, str], own: str, least: float | None) -> None:
    assert cpus(*laid_out(tmp_path, files, own)) == least


def test_a_system_without_groups_limits_nothing(tmp_path: Path) -> None:
    assert memory_bytes(tmp_path, tmp_path / "none") is None and cpus(tmp_path, tmp_path / "none") is None
