"""Computes figures from rounds: medians, what a gateway adds, ratios between gateways, and the goals for them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.goals import Goal
from bench.steal import SHARE

BUSY = 0.95
"""Share of a core from which on it counts as used up."""

IDLE = 0.8
"""If a core that should be used up was used less than this share, the machine was busy with other work."""


@dataclass(frozen=True, slots=True)
class Round:
    """One run. If there are errors, it is not a result."""

    rate: float
    """Answers or chunks per second."""
    cpu_us: float
    """The gateway's CPU time for each of them, in microseconds."""
    first_ms: float
    last_first_ms: float
    gateway_busy: float
    """The share of a core that the gateway used."""
    load_busy: float
    """The share of a core that the load used."""
    done: int
    """How many answers or chunks the CPU time was divided by."""
    errors: dict[str, int] = field(default_factory=dict)
    complaint: str = ""
    stolen: float = 0.0
    """The share of all processors' time that the hypervisor did not give to this machine."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The medians of a gateway's rounds of a case.

    limit: what limited the rate, if not the gateway: "load", whose core was used up, or "machine", which gave the
    gateway less than a core. disturbed: in most rounds the hypervisor withheld processor time from this machine.
    """

    rate: float
    cpu_us: float
    first_ms: float
    last_first_ms: float
    limit: str
    disturbed: bool = False
    rounds: tuple[Round, ...] = ()


def cell(rounds: Sequence[Round], *, wanted: float = 0.0) -> Cell | str:
    """Return the medians, or what went wrong: if any answer was not complete there is no result.

    wanted: the rate that was asked for; infinite if the gateway should do as much as possible.
    """
    for one in rounds:
        if one.errors:
            kinds = ", ".join(one.errors)
            return f"answers that were not whole: {kinds}; the first: {' '.join(one.complaint.split())[:200]}"
    middle = {
        name: statistics.median(getattr(one, name) for one in rounds)
        for name in ("rate", "cpu_us", "first_ms", "last_first_ms")
    }
    load, gateway = (statistics.median(getattr(one, name) for one in rounds) for name in ("load_busy", "gateway_busy"))
    limit = "load" if load >= BUSY else "machine" if middle["rate"] < wanted and max(load, gateway) < IDLE else ""
    disturbed = statistics.median(one.stolen for one in rounds) > SHARE
    return Cell(**middle, limit=limit, disturbed=disturbed, rounds=tuple(rounds))


def told(found: Cell | str) -> dict[str, Any]:
    """Return a cell as JSON."""
    return {"reason": found} if isinstance(found, str) else asdict(found)


Table = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""The results, as in the record: by gateway, then by case; each a cell as JSON."""


def value(table: Table, peer: str, case: str, figure: str) -> float | None:
    """Return a figure of a cell; None if it is missing."""
    found: float | None = table.get(peer, {}).get(case, {}).get(figure)
    return found


def ratio(table: Table, peers: tuple[str, str], cases: tuple[str, str], figure: str) -> float | None:
    """Return the first gateway's figure divided by the second's; None if one is missing or the second is 0."""
    above, below = (value(table, peer, case, figure) for peer, case in zip(peers, cases, strict=True))
    return above / below if above is not None and below else None


def added_ms(table: Table, peer: str, case: str, figure: str = "first_ms") -> float | None:
    """Return how much later the first text comes than without a gateway (for one stream, whatever the case asks)."""
    with_it, without = value(table, peer, case, figure), value(table, "direct", "first", "first_ms")
    return with_it - without if with_it is not None and without is not None else None


def per_cpu_second(table: Table, peers: tuple[str, str], case: str) -> float | None:
    """Return how many times as much the first gateway does per second of its own CPU time.

    Other programs on the machine do not change this.
    """
    return ratio(table, (peers[1], peers[0]), (case, case), "cpu_us")


BARE = "bare aiohttp"
"""The relay without features in the same language: it tells what the goals amount to on another machine (ADR 0039)."""


def goals(table: Table, rss: Mapping[str, float], peer: str = "nproxy") -> list[Goal]:
    """Return the goals of one gateway, in the order of the page."""
    first, bare_first = added_ms(table, peer, "first"), added_ms(table, BARE, "first")
    later = first / bare_first if first is not None and bare_first else None

    def against(other: str, case: str, figure: str = "rate") -> float | None:
        return ratio(table, (peer, other), (case, case), figure)

    return [
        *(
            Goal(says, least, aim, found, "x", True)
            for other, least, aim in (("LiteLLM", 40, 100), ("Portkey", 4, 12), ("vllm-router", 0.25, 0.6))
            for says, found in (
                (f"requests/s against {other}, 64 connections", against(other, "whole-64")),
                ("the same by CPU time", per_cpu_second(table, (peer, other), "whole-64")),
            )
        ),
        Goal("CPU per chunk against nginx, paced", 2.5, 1.7, against("nginx", "paced", "cpu_us"), "x", False),
        Goal("merged chunks/s, n=8, paced", 80_000, 110_000, value(table, peer, "n8-paced", "rate"), "", True),
        Goal(
            "CPU per merged chunk against nginx, n=8, paced",
            1.8,
            1.2,
            against("nginx", "n8-paced", "cpu_us"),
            "x",
            False,
        ),
        Goal("later first word, idle, n=1", 0.8, 0.45, first, "ms", False),
        Goal("later first word, idle, n=8", 1.2, 0.7, added_ms(table, peer, "n8-first"), "ms", False),
        Goal("largest RSS", 80, 60, rss.get(peer), "MiB", False),
        Goal(f"CPU of a whole answer against {BARE}", 1.7, 0.7, against(BARE, "whole-64", "cpu_us"), "x", False),
        Goal(f"CPU per chunk against {BARE}, paced", 1.3, 0.9, against(BARE, "paced", "cpu_us"), "x", False),
        Goal(f"later first word against {BARE}, n=1", 1.4, 0.8, later, "x", False),
    ]
