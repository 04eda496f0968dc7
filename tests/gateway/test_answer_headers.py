"""What every answer says of itself."""

from __future__ import annotations

import pytest

from tests.fakes.upstream import Behaviour, FakeUpstream
from tests.gateway.conftest import Gateway, Start


async def test_answers_carry_the_gateways_headers(gateway: Gateway) -> None:
    streamed = await gateway.stream(n=3)
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert streamed.headers["cache-control"] == "no-cache"
    assert streamed.headers["x-accel-buffering"] == "no"
    whole = await gateway.ask(n=3)
    for headers in (streamed.headers, whole.headers):
        assert headers["x-nproxy-mode"] == "fanout"
        assert headers["x-nproxy-legs"] == "3"
        assert headers["x-nproxy-upstream"] == "fake"
        assert headers["server"] == "nproxy"


MENDED = pytest.mark.parametrize(
    ("behaviour", "legs"),
    [
        pytest.param(Behaviour(n="native", width=2), "2", id="topped up"),
        pytest.param(Behaviour(n="refuse"), "5", id="refused and cut"),
    ],
)


@MENDED
async def test_whole_answers_say_what_happened_and_not_what_was_planned(
    start: Start, upstream: FakeUpstream, behaviour: Behaviour, legs: str
) -> None:
    upstream.behaviour = behaviour
    gateway = await start(n="auto")
    answer = await gateway.ask(n=4)
    assert [choice["index"] for choice in answer.json()["choices"]] == [0, 1, 2, 3]
    assert (answer.headers["x-nproxy-mode"], answer.headers["x-nproxy-legs"]) == ("fanout", legs)
    assert len(upstream.calls) == int(legs)


async def test_a_stream_says_what_is_known_when_it_begins(start: Start, upstream: FakeUpstream) -> None:
    upstream.behaviour = Behaviour(n="native", width=2)
    gateway = await start(n="auto")
    answer = await gateway.stream(n=4)
    assert (answer.headers["x-nproxy-mode"], answer.headers["x-nproxy-legs"]) == ("native", "1")
    assert len(upstream.calls) > 1
