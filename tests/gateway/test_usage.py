"""R4 over the wire: a server whose whole answers count one choice only."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.quirks import usage_per_choice
from tests.fakes.upstream import Behaviour, FakeUpstream, words
from tests.gateway.conftest import CHAT, Start


def counts_one(answer: dict[str, Any]) -> dict[str, Any]:
    each = answer["usage"]["completion_tokens"] // len(answer["choices"])
    return {**answer, "usage": {**answer["usage"], "completion_tokens": each}}


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
@pytest.mark.parametrize("n", ["native", {"native_up_to": 2}])
async def test_R4_such_a_leg_is_asked_for_as_a_stream(start: Start, upstream: FakeUpstream, path: str, n: Any) -> None:
    upstream.behaviour = Behaviour(n="native", whole_quirk=counts_one, quirk=usage_per_choice)
    gateway = await start(n=n, usage="stream")
    answer = await gateway.ask(path, n=4, seed=1)
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["usage"] == {"prompt_tokens": 5, "completion_tokens": 16, "total_tokens": 21}
    texts = [c["message"]["content"] if path == CHAT else c["text"] for c in answer.json()["choices"]]
    assert texts == ["".join(words(seed)) for seed in range(1, 5)]
    assert all(call.body["stream"] is True for call in upstream.calls)
    before = len(upstream.calls)
    assert (await gateway.ask(path, seed=1)).json()["usage"]["completion_tokens"] == 4
    (single,) = upstream.calls[before:]
    assert "stream" not in single.body, "one choice is counted right"


async def test_R4_is_a_matter_of_configuration(start: Start, upstream: FakeUpstream) -> None:
    upstream.behaviour = Behaviour(n="native", whole_quirk=counts_one)
    gateway = await start(n="native")
    assert (await gateway.ask(n=4)).json()["usage"]["completion_tokens"] == 4
    assert "stream" not in upstream.calls[0].body
