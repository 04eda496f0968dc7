"""`n_policy` over the wire."""

from __future__ import annotations

import pytest

from tests.fakes.upstream import FakeUpstream, words
from tests.gateway.conftest import Start, envelope


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
