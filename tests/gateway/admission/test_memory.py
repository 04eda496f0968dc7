"""What there is of memory, and what is held of it."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from nproxy.config import Config
from nproxy.gateway.admission.memory import LOOK_SECONDS, Memory, available, limit_of, resident

MIB = 1 << 20
MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_what_is_held_is_looked_up_now_and_then() -> None:
    read = iter([90, 110, 95])
    memory = Memory(100, lambda: next(read))
    assert [memory.over(now) for now in (0.0, LOOK_SECONDS / 2)] == [False, False]
    assert [memory.over(now) for now in (LOOK_SECONDS, LOOK_SECONDS * 1.5)] == [True, True]
    assert not memory.over(LOOK_SECONDS * 2)
    assert not Memory(None, lambda: 1 << 60).over(0.0)
    unlimited = Memory(100, lambda: 110)
    assert unlimited.over(0.0)
    unlimited.limit = None
    assert not unlimited.over(0.0), "other limits hold at once"


def test_without_files_to_open_what_was_found_last_holds() -> None:
    full = OSError(24, "Too many open files")
    found_one_by_one: list[int | OSError] = [110, full, 90, full]
    read = iter(found_one_by_one)

    def look() -> int:
        found = next(read)
        if isinstance(found, OSError):
            raise found
        return found

    memory = Memory(100, look)
    assert [memory.over(turn * LOOK_SECONDS) for turn in range(4)] == [True, True, False, False]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="systems without /proc do not tell")
def test_what_this_process_holds() -> None:
    assert resident() == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)


@pytest.mark.parametrize(
    ("groups", "own", "least"),
    [
        ({"a/b/memory.max": "max", "a/memory.max": str(64 * MIB)}, "0::/a/b", 64 * MIB),
        ({"memory.max": str(32 * MIB)}, "0::/", 32 * MIB),
        ({"memory.max": str(32 * MIB)}, "0::/not/seen/from/here", 32 * MIB),
        ({"memory/x/memory.limit_in_bytes": str(16 * MIB)}, "3:cpu:/x\n4:memory:/x", 16 * MIB),
        ({"memory/x/memory.limit_in_bytes": str(1 << 63)}, "4:memory:/x", MACHINE),
        ({}, "0::/a", MACHINE),
    ],
    ids=["v2, of a parent", "v2, inside", "v2, another root", "v1", "v1, none", "none"],
)
def test_what_a_container_may_have(tmp_path: Path, groups: dict[str, str], own: str, least: int) -> None:
    for name, text in groups.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    (tmp_path / "own").write_text(own + "\n")
    assert available(tmp_path, tmp_path / "own") == least
    assert available(tmp_path, tmp_path / "missing") == MACHINE


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="systems without /proc do not tell")
def test_the_limit_of_a_process() -> None:
    upstreams = [{"name": "u", "replicas": ["http://127.0.0.1:1/v1"]}]
    told = Config.model_validate({"upstreams": upstreams, "limits": {"memory_mib": 300}})
    assert limit_of(told) == 300 * MIB
    four = Config.model_validate({"upstreams": upstreams, "listen": {"workers": 4}})
    assert limit_of(four) == int(0.8 * available() / 4)
