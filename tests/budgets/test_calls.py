"""What a request, and a piece of a stream, may cost the gateway: in calls, from its sockets and back to them.

The budgets are a few percent above the current numbers. If a change spends more, look at what it calls (cProfile shows
`ncalls`): most often something is done for each piece that could be done once. If the change is worth its price, raise
the budget in the same commit, and say there what for. A change that spends less lowers the budget.

Calls into libraries count too, so another version of aiohttp may need another budget.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import pairwise

import pytest

from nproxy.config import Config
from nproxy.gateway.app import App
from nproxy.gateway.introspect import look
from tests.budgets.counting import Calls, calls_of
from tests.budgets.player import Player

REQUEST = 822
"""One request with n=1, without streaming, including its log line."""
RELAYED = 74
"""One chunk of a stream with n=1 that arrives alone."""
MERGED = 75
"""One chunk of a stream with n=8, merged from eight calls, that arrives alone."""

TOGETHER = 14.5
"""One of eight chunks that arrive together: a busy gateway has more to read at a time."""

SCRAPED = 43
"""One model of the configuration in a scrape, in the event loop's thread: streams wait until all are looked at."""
COUNTED = 6
"""One replica in a scrape, in the same thread."""


@pytest.fixture(autouse=True)
def _loggers_as_they_were(unwatched_log: None) -> Iterator[None]:
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
        for _ in range(20):  # until everything that is made or learned once is there
            player.whole()
        marks = [calls.made]
        for _ in range(10):
            for _ in range(10):
                player.whole()
            marks.append(calls.made)
        # the fewest: what timers call belongs to no request, and on a busy machine more of them fire between two
        return min(after - before for before, after in pairwise(marks)) / 10

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


@pytest.mark.parametrize(("what", "budget"), [("model", SCRAPED), ("replica", COUNTED)])
async def test_a_scrape(what: str, budget: float) -> None:
    async def looked(many: int) -> int:
        models, replicas = (many, 1) if what == "model" else (1, many)
        upstream = {
            "name": "up",
            "replicas": [f"http://127.0.0.1:{port}/v1" for port in range(1, replicas + 1)],
            "models": [f"m{number}" for number in range(models)],
        }
        app = App(Config.model_validate({"upstreams": [upstream]}))
        look(app)  # the first time, capabilities are looked up
        calls, made = Calls(), []
        for _ in range(3):  # something else may call in between
            before = calls.made
            with calls.counted():
                look(app)
            made.append(calls.made - before)
        await app.close()
        return min(made)

    check(f"a {what} in a scrape", (await looked(200) - await looked(100)) / 100, budget)
