"""Upstreams with `n` of their own, and finding out whether they have it."""

from __future__ import annotations

import pytest

from tests.fakes.upstream import Behaviour, FakeUpstream, words
from tests.gateway.conftest import Gateway, Start


def said(seed: int) -> str:
    return "".join(words(seed))


@pytest.fixture
async def auto(start: Start) -> Gateway:
    gateway: Gateway = await start(n="auto")
    return gateway


async def test_Q4_native_is_one_call_with_n(start: Start, upstream: FakeUpstream) -> None:
    upstream.behaviour = Behaviour(n="native")
    gateway = await start(n="native")
    answer = await gateway.ask(n=4, seed=1)
    (call,) = upstream.calls
    assert call.body["n"] == 4
    assert answer.headers["x-nproxy-mode"] == "native"
    assert answer.headers["x-nproxy-legs"] == "1"
    assert [choice["message"]["content"] for choice in answer.json()["choices"]] == [said(s) for s in range(1, 5)]


async def test_native_up_to(start: Start, upstream: FakeUpstream) -> None:
    upstream.behaviour = Behaviour(n="native", width=4)
    gateway = await start(n={"native_up_to": 4})
    answer = await gateway.ask(n=10, seed=1)
    assert sorted(call.body["n"] for call in upstream.calls) == [2, 4, 4]
    assert [choice["message"]["content"] for choice in answer.json()["choices"]] == [said(s) for s in range(1, 11)]


async def test_C7_a_native_upstream_that_falls_short_is_topped_up(start: Start, upstream: FakeUpstream) -> None:
    upstream.behaviour = Behaviour(n="native", width=3)
    gateway = await start(n="native")
    for answer in (await gateway.ask(n=5, seed=1), await gateway.ask(n=5, seed=1)):
        assert [choice["message"]["content"] for choice in answer.json()["choices"]] == [said(s) for s in range(1, 6)]
    streamed = await gateway.stream(n=5, seed=1)
    assert streamed.texts == {index: said(index + 1) for index in range(5)}
    assert streamed.finishes == {index: ["stop"] for index in range(5)}


@pytest.mark.parametrize("stream", [False, True])
async def test_Q6_auto_learns_that_n_is_ignored(auto: Gateway, upstream: FakeUpstream, stream: bool) -> None:
    async def ask() -> dict[int, str]:
        if stream:
            return (await auto.stream(n=4, seed=1)).texts
        choices = (await auto.ask(n=4, seed=1)).json()["choices"]
        return {choice["index"]: choice["message"]["content"] for choice in choices}

    expected = {index: said(index + 1) for index in range(4)}
    assert await ask() == expected
    assert upstream.calls[0].body["n"] == 4, "asked natively once"
    assert all("n" not in call.body for call in upstream.calls[1:])
    before = len(upstream.calls)
    assert await ask() == expected
    assert len(upstream.calls) == before + 4
    assert all("n" not in call.body for call in upstream.calls[before:]), "and not again"
    assert (await auto.ask(n=4)).headers["x-nproxy-mode"] == "fanout"


async def test_Q6_auto_learns_that_n_is_native(auto: Gateway, upstream: FakeUpstream) -> None:
    upstream.behaviour = Behaviour(n="native")
    for _ in range(2):
        answer = await auto.ask(n=4, seed=1)
        assert [choice["message"]["content"] for choice in answer.json()["choices"]] == [said(s) for s in range(1, 5)]
    assert [call.body["n"] for call in upstream.calls] == [4, 4]
    assert (await auto.client.get("/status")).json()["upstreams"][0]["learned"] == {"fake-model": {"n": None}}


@pytest.mark.parametrize("stream", [False, True])
async def test_Q6_auto_learns_that_n_is_refused(auto: Gateway, upstream: FakeUpstream, stream: bool) -> None:
    upstream.behaviour = Behaviour(n="refuse")
    for attempt in range(2):
        if stream:
            texts = (await auto.stream(n=3, seed=1)).texts
        else:
            choices = (await auto.ask(n=3, seed=1)).json()["choices"]
            texts = {choice["index"]: choice["message"]["content"] for choice in choices}
        assert texts == {index: said(index + 1) for index in range(3)}, attempt
    asked = [call.body.get("n") for call in upstream.calls]
    assert asked == [3] + [None] * 6, "asked natively once, and not again"


async def test_relay_of_an_exact_wire(start: Start, upstream: FakeUpstream) -> None:
    upstream.behaviour = Behaviour(n="native")
    gateway = await start(n="native", wire="exact")
    answer = await gateway.ask(n=3, seed=1)
    assert answer.headers["x-nproxy-mode"] == "relay"
    assert answer.json()["id"].startswith("fake-")
    assert len(answer.json()["choices"]) == 3
