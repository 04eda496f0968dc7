"""Groups L, M and N: clients that leave, clients that read slowly, and upstreams that take few calls at once."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from tests.conformance.scene import SEED, Scene
from tests.conformance.settings import FANOUT, NATIVE, everywhere, of_legs, of_several, settings
from tests.fakes.behaviour import event, said
from tests.gateway.raw import WITHIN, gauges_return, leave, open_request

LEGS = 'nproxy_legs_total{outcome="%s",upstream="fake"}'


def before_head() -> dict[str, Any]:
    return {"hold": asyncio.Event()}


def mid_stream() -> dict[str, Any]:
    return {"hold_after": 2}


@everywhere
@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
@pytest.mark.parametrize(
    ("stream", "does"),
    [(True, mid_stream), (True, before_head), (False, before_head)],
    ids=["mid-stream", "before-head", "not-streaming"],
)
async def test_L1_the_client_leaves(scene: Scene, how: str, stream: bool, does: Callable[[], dict[str, Any]]) -> None:
    gateway = await scene.gateway()
    scene.does(**does())
    reader, writer = await open_request(gateway, scene.fields(stream=stream))
    await scene.upstream.until(lambda: len(scene.upstream.open_calls) == scene.legs)
    if does is mid_stream:
        await reader.readuntil(b"data: ")
    await leave(writer, how)
    await scene.upstream.until(lambda: not scene.upstream.open_calls, WITHIN)
    assert all(call.cancelled for call in scene.calls)
    await gauges_return(gateway)
    mode = {"one": "relay"}.get(scene.setting.name, scene.setting.name)
    labels = f'code="499",endpoint="chat/completions",mode="{mode}",model="fake-model",upstream="fake"'
    assert await gateway.metric(f"nproxy_requests_total{{{labels}}}") == 1.0
    assert await gateway.metric(LEGS % "cancelled") == scene.legs
    writer.close()


@everywhere
async def test_L1_leaving_is_never_the_upstreams_failure(scene: Scene) -> None:
    """The client disconnects while the gateway writes to it."""
    gateway = await scene.gateway()
    scene.does(pieces=lambda seed: ["x" * 50_000] * 200, pause=0.001, hold_after=150)
    reader, writer = await open_request(gateway, scene.fields(stream=True))
    await reader.readuntil(b"data: ")
    await leave(writer, "reset")
    await scene.upstream.until(lambda: not scene.upstream.open_calls, WITHIN)
    await gauges_return(gateway)
    text = (await gateway.client.get("/metrics")).text
    outcomes = [line for line in text.splitlines() if line.startswith("nproxy_legs_total{")]
    assert outcomes == [f"{LEGS % 'cancelled'} {scene.legs}.0"]
    assert "nproxy_retries_total{" not in text


async def waits_for(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN):
        while not condition():
            await asyncio.sleep(0.01)


@everywhere
async def test_L3_a_client_that_leaves_while_its_calls_wait_made_none(scene: Scene) -> None:
    gateway = await scene.start(parallel=1)
    scene.does(hold_after=2)
    _, first = await open_request(gateway, scene.fields(stream=True))
    await scene.upstream.until(lambda: len(scene.upstream.open_calls) == 1)
    _, second = await open_request(gateway, scene.fields(stream=True))
    (waiting,) = gateway.app.upstreams.all
    await waits_for(lambda: waiting.gate.waiting > 0)
    assert await gateway.metric(f'nproxy_legs_waiting{{upstream="{waiting.name}"}}') == waiting.gate.waiting
    second.close()
    await waits_for(lambda: gateway.app.inflight == 1)
    first.close()
    await scene.upstream.until(lambda: not scene.upstream.open_calls, WITHIN)
    await gauges_return(gateway)
    assert len(scene.calls) == 1


@everywhere
async def test_Q20_gauges_return_after_any_end(scene: Scene) -> None:
    ends: list[dict[str, Any]] = [
        {},
        {"status": 500},
        {"end_after": 2, "end": "reset"},
        {"end_after": 2, "end": "malformed"},
        {"before_head": "close"},
        {"body": b"{"},
    ]
    for end in ends:
        scene.does(**end)
        for stream in (False, True):
            await scene.send(stream=stream)
    await gauges_return(await scene.gateway())
    assert scene.upstream.open_calls == []


# ---- slow readers


def memory() -> int:
    gc.collect()
    return int(psutil.Process().memory_info().rss)


@everywhere
async def test_M1_a_slow_reader_stops_the_upstream(scene: Scene) -> None:
    """The upstream has 100 MB to send for each choice. While the client reads nothing, it can send little of that."""
    gateway = await scene.gateway()
    piece = "x" * 100_000
    scene.does(pieces=lambda seed: [piece] * 1000)
    before = memory()
    reader, writer = await open_request(gateway, scene.fields(stream=True))
    await reader.readexactly(1000)
    sent = [-1, 0]
    while sent[-1] != sent[-2]:  # until nothing more is read
        await asyncio.sleep(0.3)
        sent.append(sum(call.sent for call in scene.calls))
    assert sent[-1] < 40_000_000 * scene.n, "what fits into buffers on the way, the kernel's for the most part"
    assert memory() - before < 100 << 20
    assert len(scene.upstream.open_calls) == scene.legs, "they wait, and are not cut"
    writer.close()
    await scene.upstream.until(lambda: not scene.upstream.open_calls, 1.0)
    await gauges_return(gateway)


@everywhere
async def test_M1_nothing_is_dropped_for_a_slow_reader(scene: Scene) -> None:
    pieces = [f"<{number}>" + "y" * 2000 for number in range(500)]
    scene.does(pieces=lambda seed: pieces)
    reader, writer = await open_request(await scene.gateway(), scene.fields(stream=True))
    raw = b""
    for _ in range(20):
        raw += await reader.read(4096)
        await asyncio.sleep(0.01)
    while not raw.endswith(b"\r\n0\r\n\r\n"):
        raw += await reader.read(1 << 20)
    writer.close()
    for number in range(500):
        assert raw.count(b"<%d>" % number) == scene.n


def long_stream(indices: range, tokens: int) -> bytes:
    """So many tokens of each choice, in turn."""
    head = {"id": "u", "object": "chat.completion.chunk", "created": 1, "model": "m"}

    def chunk(index: int, delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
        return event(json.dumps({**head, "choices": [choice]}).encode())

    first = [chunk(index, {"role": "assistant", "content": ""}) for index in indices]
    last = [chunk(index, {}, "stop") for index in indices]
    return b"".join([*first, *[chunk(index, {"content": " token"}) for index in indices] * tokens, *last])


@settings(FANOUT, NATIVE, why="it is about 16 choices")
async def test_M3_a_long_stream_of_16_choices_leaves_nothing_behind(scene: Scene) -> None:
    """100,000 tokens in all. Memory is compared from 20,000 on, so that whatever grows with the stream shows."""
    own = long_stream(range(16) if scene.setting.native else range(1), 6250) + event(b"[DONE]")
    scene.does(body=own, content_type="text/event-stream", segment=1 << 14)
    gateway = await scene.gateway()
    reader, writer = await open_request(gateway, scene.fields(stream=True, n=16))
    seen, early, rest = 0, 0, b""
    while True:
        data = await reader.read(1 << 16)
        seen += (rest + data).count(b" token") - rest.count(b" token")
        rest = data[-5:]
        if not early and seen > 20_000:
            early = memory()
        if data.endswith(b"\r\n0\r\n\r\n") or not data:
            break
    late = memory()
    writer.close()
    assert seen == 100_000
    assert late - early < 8 << 20


# ---- few calls at once


@of_several
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("mode", ["configured", "auto"])
async def test_N7_one_call_at_a_time(scene: Scene, stream: bool, mode: str) -> None:
    """Eight choices from a server with one slot; no timer runs for calls that wait."""
    learns: dict[str, Any] = {"n": "auto"} if mode == "auto" else {}
    gateway = await scene.start(parallel=1, timeouts={"first_event": 0.5, "response": 0.5}, **learns)
    scene.does(pause=0.12 if not stream else 0.01)
    assert (await scene.either(stream, n=8)).texts == {index: said(SEED + index) for index in range(8)}
    assert scene.upstream.most_at_once == 1
    await gauges_return(gateway)


@of_legs
async def test_N7_across_requests(scene: Scene) -> None:
    await scene.start(parallel=2)
    scene.does(pause=0.01)
    answers = await asyncio.gather(*(scene.whole() for _ in range(5)))
    assert [answer.texts for answer in answers] == [scene.said] * 5
    assert scene.upstream.most_at_once == 2
