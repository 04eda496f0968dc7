"""`choice_params` over the wire."""

from __future__ import annotations

import pytest

from tests.fakes.upstream import Behaviour, FakeUpstream, words
from tests.gateway.conftest import CHAT, Start, envelope

OWN = [{"temperature": 0}, {"seed": 99, "max_tokens": 4}, {}]


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
@pytest.mark.parametrize("n", ["fanout", "native", "auto"])
async def test_each_choice_is_drawn_as_it_asks(start: Start, upstream: FakeUpstream, path: str, n: str) -> None:
    upstream.behaviour = Behaviour(n="ignore" if n == "fanout" else "native")
    gateway = await start(n=n)
    streamed = await gateway.stream(path, n=3, seed=1, temperature=0.5, choice_params=OWN)
    assert streamed.texts == {index: "".join(words(seed)) for index, seed in enumerate((1, 99, 3))}
    assert streamed.done
    sent = {call.body["seed"]: call.body for call in upstream.calls}
    assert {seed: body["temperature"] for seed, body in sent.items()} == {1: 0, 99: 0.5, 3: 0.5}
    assert sent[99]["max_tokens"] == 4
    assert all("choice_params" not in body and "n" not in body for body in sent.values())


async def test_an_exact_wire_gets_the_field(start: Start, upstream: FakeUpstream) -> None:
    upstream.behaviour = Behaviour(n="native")
    gateway = await start(n="native", wire="exact")
    assert (await gateway.ask(n=3, choice_params=OWN)).status_code == 200
    (call,) = upstream.calls
    assert call.body["choice_params"] == OWN and call.body["n"] == 3


async def test_what_cannot_be_is_refused_before_any_call(start: Start, upstream: FakeUpstream) -> None:
    gateway = await start()
    for own, param in (([{}], "choice_params"), ([{}, {"model": "x"}], "choice_params.1.model")):
        refused = await gateway.ask(n=2, choice_params=own)
        assert refused.status_code == 400
        assert envelope(refused)["param"] == param
    assert upstream.calls == []
