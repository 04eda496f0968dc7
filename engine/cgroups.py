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
    return _least("memory", _memory, groups, own)


def cpus(groups: Path = GROUPS, own: Path = OWN) -> float | None:
    """The least CPU time that a group may have, in seconds each second; None where none is limited."""
    return _least("cpu", _quota, groups, own)


def _memory(folder: Path) -> int:
    """Raises ValueError where it is `max`."""
    file = folder / "memory.max"
    return int((file if file.exists() else folder / "memory.limit_in_bytes").read_text())


def _quota(folder: Path) -> float:
    """Raises ValueError where there is none: its word is `max`, or -1."""
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
