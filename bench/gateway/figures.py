"""From rounds to figures: medians, what a gateway adds, ratios between gateways, and the bars they are held against."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.goals import Goal
from bench.steal import SHARE

BUSY = 0.95
"""From which share on a core counts as used up."""

IDLE = 0.8
"""Below which share a core that should be used up was not: the machine had other things to do."""


@dataclass(frozen=True, slots=True)
class Round:
    """One run. rate: answers or chunks a second. cpu_us: of the gateway for each of them. busy: shares of a core.

    done: how many of them the CPU time was divided by. stolen: the share of all processors' time that the machine was
    not given. With errors it is no result.
    """

    rate: float
    cpu_us: float
    first_ms: float
    last_first_ms: float
    gateway_busy: float
    load_busy: float
    done: int
    errors: dict[str, int] = field(default_factory=dict)
    complaint: str = ""
    stolen: float = 0.0


@dataclass(frozen=True, slots=True)
class Cell:
    """The medians of a gateway's rounds of a case.

    limit: what kept the rate down, if not the gateway: "load", whose core was used up, or "machine", which gave the
    gateway less than a core. disturbed: in most rounds the machine itself was given less than it should have been.
    """

    rate: float
    cpu_us: float
    first_ms: float
    last_first_ms: float
    limit: str
    disturbed: bool = False
    rounds: tuple[Round, ...] = ()


def cell(rounds: Sequence[Round], *, wanted: float = 0.0) -> Cell | str:
    """The medians, or what went wrong: where any answer was not whole there is no result.

    wanted: the rate that was asked for; infinite where it is all that a gateway can do.
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
    """A cell as JSON."""
    return {"reason": found} if isinstance(found, str) else asdict(found)


Table = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""What was found, as the record has it: by gateway, then by case; each a cell as JSON."""


def value(table: Table, peer: str, case: str, figure: str) -> float | None:
    """A figure of a cell; None where there is none."""
    found: float | None = table.get(peer, {}).get(case, {}).get(figure)
    return found


def ratio(table: Table, peers: tuple[str, str], cases: tuple[str, str], figure: str) -> float | None:
    """The first gateway's figure over the second's; None where one is missing or nothing."""
    above, below = (value(table, peer, case, figure) for peer, case in zip(peers, cases, strict=True))
    return above / below if above is not None and below else None


def added_ms(table: Table, peer: str, case: str, figure: str = "first_ms") -> float | None:
    """How much later the first word comes than without a gateway (of one stream, whatever the case asks)."""
    with_it, without = value(table, peer, case, figure), value(table, "direct", "first", "first_ms")
    return with_it - without if with_it is not None and without is not None else None


def per_cpu_second(table: Table, peers: tuple[str, str], case: str) -> float | None:
    """How many times as much the first gateway does in a second of its own CPU time; no other program changes it."""
    return ratio(table, (peers[1], peers[0]), (case, case), "cpu_us")


BARE = "bare aiohttp"
"""The relay without features in the same language: what bars come to on another machine is told by it (ADR 0039)."""


def goals(table: Table, rss: Mapping[str, float], peer: str = "nproxy") -> list[Goal]:
    """The bars of one gateway, in the order of the page."""
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
