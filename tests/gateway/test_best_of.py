"""`best_of` over the wire."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.fakes.upstream import Behaviour, FakeUpstream, words
from tests.gateway.conftest import CHAT, Start, envelope

COMPLETIONS = "/v1/completions"
PATHS = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])


def said(seed: int) -> str:
    return "".join(words(seed))


def likely(answer: dict[str, Any]) -> dict[str, Any]:
    """Let seeds be the likelier the higher they are, up to 12; later ones are unlikely."""
    for choice in answer["choices"]:
        text = choice["message"]["content"] if "message" in choice else choice["text"]
        found = re.match(r"seed (\d+)", text)
        assert found is not None and choice["logprobs"] is not None
        seed = int(found[1])
        score = -1.0 / seed if seed <= 12 else -float(seed)
        for entry in choice["logprobs"].get("content", []):
            entry["logprob"] = score
        if "token_logprobs" in choice["logprobs"]:
            choice["logprobs"]["token_logprobs"] = [score] * len(choice["logprobs"]["tokens"])
    return answer


@PATHS
@pytest.mark.parametrize("n", ["fanout", "native", "auto", {"native_up_to": 2}])
async def test_J9_E10_the_likeliest_of_many(start: Start, upstream: FakeUpstream, path: str, n: Any) -> None:
    upstream.behaviour = Behaviour(n="ignore" if n == "fanout" else "native", whole_quirk=likely)
    gateway = await start(n=n)
    answer = await gateway.ask(path, best_of=4, n=2, seed=10)
    assert answer.status_code == 200
    choices = answer.json()["choices"]
    texts = [choice["message"]["content"] if path == CHAT else choice["text"] for choice in choices]
    assert texts == [said(12), said(11)]
    assert all(choice["logprobs"] is None for choice in choices)
    assert answer.json()["usage"]["completion_tokens"] == 16
    assert all("best_of" not in call.body for call in upstream.calls)
    tokens = 'nproxy_choices_total{finish_reason="stop",model="other",upstream="fake"}'
    assert await gateway.metric(tokens) == 2
    assert await gateway.metric("nproxy_inflight_choices") == 0


@PATHS
@pytest.mark.parametrize("refuse", [False, True])
async def test_J12_no_log_probabilities(start: Start, upstream: FakeUpstream, path: str, refuse: bool) -> None:
    upstream.behaviour = Behaviour(refuse=("logprobs",)) if refuse else Behaviour(logprobs=False)
    gateway = await start(n="fanout")
    for _ in range(2):
        refused = await gateway.ask(path, best_of=3)
        assert refused.status_code == 400
        assert envelope(refused)["param"] == "best_of"
        assert envelope(refused)["type"] == "invalid_request_error"
    assert len(upstream.calls) <= (6 if refuse else 3), "an answer without them is remembered"
    assert (await gateway.ask(path, n=3)).status_code == 200


async def test_J12_on_an_exact_wire(start: Start, upstream: FakeUpstream) -> None:
    upstream.behaviour = Behaviour(n="native", refuse=("logprobs",))
    gateway = await start(n="native", wire="exact")
    refused = await gateway.ask(COMPLETIONS, best_of=3)
    assert refused.status_code == 400
    assert envelope(refused)["param"] == "best_of"
    (call,) = upstream.calls
    assert call.body["n"] == 3
