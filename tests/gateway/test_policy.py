"""`n_policy` over the wire."""

from __future__ import annotations

import pytest

from tests.fakes.upstream import Behaviour, FakeUpstream, words
from tests.gateway.conftest import Gateway, Start, envelope


@pytest.mark.parametrize("n", ["fanout", "native", "auto"])
async def test_A14_E9_dedupe(start: Start, upstream: FakeUpstream, n: str) -> None:
    gateway = await start(n=n, config={"n_policy": {"greedy": "dedupe"}})
    said = "".join(words(7))
    whole = await gateway.ask(n=3, temperature=0, seed=7)
    assert [(c["index"], c["message"]["content"]) for c in whole.json()["choices"]] == [(i, said) for i in range(3)]
    assert whole.json()["usage"]["completion_tokens"] == 12
    assert whole.headers["x-nproxy-legs"] == "1"
    streamed = await gateway.stream(n=3, temperature=0, seed=7, stream_options={"include_usage": True})
    assert streamed.texts == dict.fromkeys(range(3), said)
    assert streamed.finishes == {index: ["stop"] for index in range(3)}
    assert streamed.chunks[-1]["usage"]["completion_tokens"] == 12
    assert streamed.done
    assert len(upstream.calls) == 2
    tokens = 'nproxy_tokens_total{model="other",side="%s",type="completion",upstream="fake"}'
    assert await gateway.metric(tokens % "client") == 24
    assert await gateway.metric(tokens % "upstream") == 8


@pytest.mark.parametrize("n", ["fanout", "native"])
async def test_A14_reject(start: Start, upstream: FakeUpstream, n: str) -> None:
    gateway = await start(n=n, config={"n_policy": {"greedy": "reject"}})
    refused = await gateway.ask(n=3, temperature=0)
    assert refused.status_code == 400
    assert envelope(refused)["param"] == "n"
    assert upstream.calls == []
    assert (await gateway.ask(n=1, temperature=0)).status_code == 200


@pytest.fixture
async def partial(start: Start) -> Gateway:
    gateway: Gateway = await start(retries={"per_leg": 0}, config={"n_policy": {"on_leg_failure": "partial"}})
    return gateway


async def test_K3_partial(partial: Gateway, upstream: FakeUpstream) -> None:
    upstream.choose = lambda call: Behaviour(status=500) if call.body["seed"] == 2 else None
    answer = await partial.ask(n=3, seed=1)
    assert answer.status_code == 200
    assert answer.headers["x-nproxy-partial"] == "2/3"
    said = [(choice["index"], choice["message"]["content"]) for choice in answer.json()["choices"]]
    assert said == [(0, "".join(words(1))), (2, "".join(words(3)))]
    line = 'nproxy_choices_total{finish_reason="%s",model="other",upstream="fake"}'
    assert await partial.metric(line % "stop") == 2
    assert await partial.metric(line % "error") == 1


async def test_K3_partial_streams(partial: Gateway, upstream: FakeUpstream) -> None:
    upstream.choose = lambda call: Behaviour(end_after=2, end="reset") if call.body["seed"] == 2 else None
    answer = await partial.stream(n=3, seed=1)
    assert answer.done
    assert answer.finishes == {0: ["stop"], 1: ["error"], 2: ["stop"]}
    assert answer.texts[0] == "".join(words(1)) and answer.texts[2] == "".join(words(3))


async def test_K3_nothing_is_an_error(partial: Gateway, upstream: FakeUpstream) -> None:
    upstream.behaviour = Behaviour(status=500)
    answer = await partial.ask(n=3)
    assert answer.status_code == 500
    assert "x-nproxy-partial" not in answer.headers
