"""What a request, and a piece of a stream, may cost the gateway, in calls from its sockets and back to them.

The budgets lie a few percent above what it is. Where a change spends more, look for what it calls (cProfile with
`ncalls` shows it): most often something is done anew for each piece that can be done once. Where it is worth its price,
the budget is raised in the same commit, which says for what. A change that spends less lowers it.

Calls into libraries count as well, so another version of aiohttp may want another budget.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.budgets.counting import Calls, calls_of
from tests.budgets.player import Player

REQUEST = 970
"""One request of n=1, without streaming, with its line in the log."""
RELAYED = 74
"""One chunk of a stream of n=1, which comes alone."""
MERGED = 75
"""One chunk of a stream of n=8 that is merged from eight calls, which comes alone."""

TOGETHER = 14.5
"""One chunk of eight that come together: a busy gateway has more to read at a time."""


@pytest.fixture(autouse=True)
def _loggers_as_they_were() -> Iterator[None]:
    yield
    for name in ("nproxy", "aiohttp"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.setLevel(logging.NOTSET)
        logger.propagate = True


def check(what: str, calls: float, budget: float) -> None:
    assert calls <= budget, f"{what} takes {calls:.1f} calls, and may take {budget}; see the head of this file"


def test_a_request() -> None:
    def play(player: Player, calls: Calls) -> float:
        for _ in range(20):  # what is made once is made, and what is learned is learned
            player.whole()
        before = calls.made
        for _ in range(100):
            player.whole()
        return (calls.made - before) / 100

    check("a request", calls_of(play), REQUEST)


@pytest.mark.parametrize(("n", "budget"), [(1, RELAYED), (8, MERGED)])
def test_a_chunk(n: int, budget: float) -> None:
    def play(player: Player, calls: Calls) -> float:
        with player.stream(n) as legs:
            for _ in range(5):
                for leg in legs:
                    player.say(leg)
            before = calls.made
            for _ in range(200 // n):
                for leg in legs:
                    player.say(leg)
            return (calls.made - before) / (200 // n * n)

    check(f"a chunk of n={n}", calls_of(play), budget)


def test_a_chunk_among_others() -> None:
    def play(player: Player, calls: Calls) -> float:
        with player.stream(1) as (leg,):
            player.say(leg, 8)
            before = calls.made
            for _ in range(25):
                player.say(leg, 8)
            return (calls.made - before) / 200

    check("a chunk of eight", calls_of(play), TOGETHER)
