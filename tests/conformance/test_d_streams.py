"""Groups B to J over the wire, fanned out: that what comes from several calls reads as one answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fakes.upstream import MODEL, Behaviour, FakeUpstream, words
from tests.gateway.conftest import Gateway, Start, body

COMPLETIONS = "/v1/completions"


def said(seed: int) -> str:
    return "".join(words(seed))


async def test_B1_seeds_count_up(gateway: Gateway, upstream: FakeUpstream) -> None:
    answer = await gateway.ask(n=3, seed=42)
    assert sorted(call.body["seed"] for call in upstream.calls) == [42, 43, 44]
    assert all("n" not in call.body for call in upstream.calls)
    assert [choice["message"]["content"] for choice in answer.json()["choices"]] == [said(42), said(43), said(44)]
    single = await gateway.ask(seed=42)
    assert single.json()["choices"][0]["message"]["content"] == said(42)


async def test_B2_without_a_seed_the_choices_differ(gateway: Gateway, upstream: FakeUpstream) -> None:
    await gateway.ask(n=8)
    seeds = [call.body["seed"] for call in upstream.calls]
    assert len(set(seeds)) == 8
    assert all(0 <= seed < 2**31 for seed in seeds)


async def test_B6_a_refused_seed_is_left_out_and_remembered(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.behaviour = Behaviour(refuse=("seed",))
    answer = await gateway.ask(n=3)
    assert answer.status_code == 200
    assert len(answer.json()["choices"]) == 3
    before = len(upstream.calls)
    assert (await gateway.ask(n=3)).status_code == 200
    assert len(upstream.calls) == before + 3
    assert all("seed" not in call.body for call in upstream.calls[before:])


async def test_C1_C2_C3_in_order_under_one_id(gateway: Gateway, upstream: FakeUpstream) -> None:
    holds = {42: asyncio.Event(), 43: asyncio.Event(), 44: asyncio.Event()}
    upstream.choose = lambda call: Behaviour(hold=holds[call.body["seed"]])
    asked = asyncio.create_task(gateway.ask(n=3, seed=42))
    await upstream.until(lambda: len(upstream.open_calls) == 3)
    for seed in (44, 42, 43):
        holds[seed].set()
        left = {44: 2, 42: 1, 43: 0}[seed]
        await upstream.until(lambda left=left: len(upstream.open_calls) == left)
    answer = (await asked).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert [choice["message"]["content"] for choice in answer["choices"]] == [said(42), said(43), said(44)]
    assert answer["model"] == MODEL
    assert answer["id"].startswith("chatcmpl-")
    assert answer["object"] == "chat.completion"


async def test_D1_D4_prelude_then_single_choice_chunks(gateway: Gateway, upstream: FakeUpstream) -> None:
    holds = {seed: asyncio.Event() for seed in (42, 43, 44)}
    upstream.choose = lambda call: Behaviour(hold=holds[call.body["seed"]])
    asked = asyncio.create_task(gateway.stream(n=3, seed=42))
    await upstream.until(lambda: len(upstream.open_calls) == 3)
    holds[44].set()
    await upstream.until(lambda: len(upstream.open_calls) == 2)
    for hold in holds.values():
        hold.set()
    answer = await asked
    assert all(len(chunk["choices"]) == 1 for chunk in answer.chunks)
    prelude = [(chunk["choices"][0]["index"], chunk["choices"][0]["delta"]) for chunk in answer.chunks[:3]]
    assert prelude == [(index, {"role": "assistant", "content": ""}) for index in range(3)]
    assert answer.chunks[3]["choices"][0]["index"] == 2, "the first to speak"
    roles = [chunk for chunk in answer.chunks if "role" in chunk["choices"][0]["delta"]]
    assert len(roles) == 3, "the upstream's own role chunks are not repeated"


async def test_D5_D6_D9_one_head_one_finish_each_one_done(gateway: Gateway) -> None:
    answer = await gateway.stream(n=4, seed=1)
    heads = {(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in answer.chunks}
    assert len(heads) == 1
    assert answer.finishes == {index: ["stop"] for index in range(4)}
    assert answer.done


async def test_D3_D10_upstreams_that_leave_things_out(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.behaviour = Behaviour(role=False, done=False)
    answer = await gateway.stream(n=2, seed=5)
    assert answer.texts == {0: said(5), 1: said(6)}
    assert answer.done
    assert answer.chunks[0]["choices"][0]["delta"]["role"] == "assistant"


async def test_D15_a_stalled_leg_delays_no_sibling(gateway: Gateway, upstream: FakeUpstream) -> None:
    stalled = Behaviour(hold_after=2)
    upstream.choose = lambda call: stalled if call.body["seed"] == 0 else None
    seen = b""
    sent = body(n=3, seed=0, stream=True)
    async with gateway.client.stream("POST", "/v1/chat/completions", json=sent) as answer:
        async for data in answer.aiter_raw():
            seen += data
            if seen.count(b'"finish_reason":"stop"') == 2:
                stalled.go_on.set()
    assert stalled.go_on.is_set()
    assert seen.count(b'"finish_reason":"stop"') == 3
    assert seen.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("n", ["fanout", "native"])
async def test_D16_stream_and_whole_answer_agree(start: Start, upstream: FakeUpstream, n: str) -> None:
    upstream.behaviour = Behaviour(n="native" if n == "native" else "ignore")
    gateway = await start(n=n)
    streamed = await gateway.stream(n=3, seed=9)
    whole = (await gateway.ask(n=3, seed=9)).json()
    assert streamed.texts == {choice["index"]: choice["message"]["content"] for choice in whole["choices"]}
    assert streamed.texts == {0: said(9), 1: said(10), 2: said(11)}


@pytest.mark.parametrize("n", ["fanout", "native"])
async def test_E1_E7_usage_counts_the_prompt_once(start: Start, upstream: FakeUpstream, n: str) -> None:
    upstream.behaviour = Behaviour(n="native" if n == "native" else "ignore")
    gateway = await start(n=n)
    expected = {"prompt_tokens": 5, "completion_tokens": 12, "total_tokens": 17}
    whole = (await gateway.ask(n=3, seed=1)).json()
    assert {key: whole["usage"][key] for key in expected} == expected
    streamed = await gateway.stream(n=3, seed=1, stream_options={"include_usage": True})
    *chunks, tail = streamed.chunks
    assert {key: tail["usage"][key] for key in expected} == expected
    assert tail["choices"] == []
    assert all(chunk["usage"] is None for chunk in chunks)
    assert streamed.done


async def test_E6_a_leg_without_usage(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.choose = lambda call: Behaviour(usage=call.body["seed"] != 2)
    assert not (await gateway.ask(n=3, seed=1)).json().get("usage")
    streamed = await gateway.stream(n=3, seed=1, stream_options={"include_usage": True})
    assert not any(chunk.get("usage") for chunk in streamed.chunks)


@pytest.mark.parametrize("fields", [{}, {"n": 2}])
async def test_E8_usage_that_was_not_asked_for_stays_inside(
    gateway: Gateway, upstream: FakeUpstream, fields: dict[str, Any]
) -> None:
    streamed = await gateway.stream(**fields)
    assert upstream.calls[0].body["stream_options"]["include_usage"] is True
    assert not any("usage" in chunk for chunk in streamed.chunks)
    line = 'nproxy_tokens_total{model="other",side="client",type="completion",upstream="fake"}'
    assert await gateway.metric(line) == 4.0 * fields.get("n", 1)


async def test_J1_J2_legacy_completions(gateway: Gateway, upstream: FakeUpstream) -> None:
    one = await gateway.ask(COMPLETIONS, n=3, seed=1)
    assert [(choice["index"], choice["text"]) for choice in one.json()["choices"]] == [
        (0, said(1)),
        (1, said(2)),
        (2, said(3)),
    ]
    two = await gateway.ask(COMPLETIONS, prompt=["a", "b"], n=2, seed=1)
    assert [(choice["index"], choice["text"]) for choice in two.json()["choices"]] == [
        (0, said(1)),
        (1, said(2)),
        (2, said(1)),
        (3, said(2)),
    ]
    streamed = await gateway.stream(COMPLETIONS, prompt=["a", "b"], n=2, seed=1)
    assert streamed.texts == {0: said(1), 1: said(2), 2: said(1), 3: said(2)}
    assert streamed.done


@pytest.mark.parametrize("behaviour", [Behaviour(segment=1), Behaviour(newline=b"\r\n"), Behaviour(newline=b"\r")])
@pytest.mark.parametrize("n", [1, 3])
async def test_P2_P6_any_bytes_of_the_upstream(
    gateway: Gateway, upstream: FakeUpstream, behaviour: Behaviour, n: int
) -> None:
    upstream.behaviour = behaviour
    answer = await gateway.stream(n=n, seed=3)
    assert answer.texts == {index: said(3 + index) for index in range(n)}
    assert answer.done
    assert b"\r" not in answer.raw


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stream", [False, True])
async def test_upstream_connections_are_reused(gateway: Gateway, upstream: FakeUpstream, stream: bool, n: int) -> None:
    for _ in range(5):
        assert (await gateway.ask(n=n, stream=stream)).status_code == 200
    assert upstream.connections <= n
    assert await gateway.metric('nproxy_legs_total{outcome="ok",upstream="fake"}') == 5 * n
    assert not any(call.cancelled for call in upstream.calls)
