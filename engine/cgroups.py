"""What the control groups around this process allow it: its own and those around that, v2 and v1 (cgroups(7)).

A group's files stand in its folder, and the root's has none: a container sees its group as the root, but a systemd unit
with `MemoryMax=` or `CPUQuota=` is some levels below it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

Limit = TypeVar("Limit", int, float)

GROUPS, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def memory_bytes(groups: Path = GROUPS, own: Path = OWN) -> int | None:
    """The least memory that a group may have; None where none is limited."""
    return _least("memory", lambda folder: int(_read(folder, "memory.max", "memory.limit_in_bytes")), groups, own)


def cpus(groups: Path = GROUPS, own: Path = OWN) -> float | None:
    """The least CPU time that a group may have, in seconds each second; None where none is limited."""
    return _least("cpu", _quota, groups, own)


def _quota(folder: Path) -> float:
    """Raises ValueError where there is none: its word is `max`, or -1."""
    if (folder / "cpu.max").exists():
        quota, period = map(int, _read(folder, "cpu.max").split())
    else:
        quota, period = int(_read(folder, "cpu.cfs_quota_us")), int(_read(folder, "cpu.cfs_period_us"))
    if quota < 0:
        raise ValueError("no limit")
    return quota / period


def _least(controller: str, limit: Callable[[Path], Limit], groups: Path, own: Path) -> Limit | None:
    found: list[Limit] = []
    for folder in _folders(controller, groups, own):
        try:
            found.append(limit(folder))
        except (OSError, ValueError):  # no such group as seen from here, or no limit
            continue
    return min(found, default=None)


def _folders(controller: str, groups: Path, own: Path) -> Iterator[Path]:
    """The folders of the own group and all around it, in each hierarchy that has the controller."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            root = groups
        elif controller in controllers.split(","):
            root = groups / controller
        else:
            continue
        place = Path(path.lstrip("/"))
        for part in (place, *place.parents):
            yield root / part


def _read(folder: Path, *names: str) -> str:
    """The first of these files that there is. Raises OSError where there is none."""
    there = [folder / name for name in names if (folder / name).exists()]
    return (there[0] if there else folder / names[0]).read_text()
