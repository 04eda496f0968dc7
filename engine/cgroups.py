"""What the control groups around this process allow: its own and those that contain it, v2 and v1 (cgroups(7)).

A group's files are in its folder, and the root group has none: a container sees its group as the root, but a systemd
unit with `MemoryMax=` or `CPUQuota=` is some levels below it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

Limit = TypeVar("Limit", int, float)

GROUPS, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def memory_bytes(groups: Path = GROUPS, own: Path = OWN) -> int | None:
    """Return the least memory limit of these groups, in bytes; None if there is no limit."""
    return _least("memory", _memory, groups, own)


def cpus(groups: Path = GROUPS, own: Path = OWN) -> float | None:
    """Return the least CPU time limit of these groups, in seconds per second; None if there is no limit."""
    return _least("cpu", _quota, groups, own)


def _memory(folder: Path) -> int:
    """Return a group's memory limit. Raises ValueError if it is `max`."""
    file = folder / "memory.max"
    return int((file if file.exists() else folder / "memory.limit_in_bytes").read_text())


def _quota(folder: Path) -> float:
    """Return a group's CPU time limit. Raises ValueError if there is none, which is written as `max`, or -1."""
    if (file := folder / "cpu.max").exists():
        quota, period = map(int, file.read_text().split())
    else:
        quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
    if quota < 0:
        raise ValueError("no limit")
    return quota / period


def _least(controller: str, limit: Callable[[Path], Limit], groups: Path, own: Path) -> Limit | None:
    found: list[Limit] = []
    for folder in _folders(controller, groups, own):
        try:
            found.append(limit(folder))
        except (OSError, ValueError):  # the group is not visible from here, or has no limit
            continue
    return min(found, default=None)


def _folders(controller: str, groups: Path, own: Path) -> Iterator[Path]:
    """Yield the folders of the own group and of all groups around it, in each hierarchy that has the controller."""
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
