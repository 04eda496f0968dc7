"""Upstreams that fail, over real sockets: what the client gets is right, or says that it is not.

docs/faults.md maps every fault that nproxy is to survive to its tests; here are those that stand nowhere else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.load.ask import Ask, Outcome
from bench.load.client import Client
from bench.load.stand import Upstream, settings, stand
from bench.load.tape import Tape
from tests.clients import lines_of
from tests.fakes.behaviour import said
from tests.fakes.chaos import CLEAN, ChaosProxy, Fault, drawn
from tests.fakes.upstream import Behaviour, FakeUpstream, raw_server
from tests.gateway.conftest import Gateway, Start, envelope, gateway_for

FAST: dict[str, Any] = {"timeouts": {"connect": 5, "first_event": 0.5, "idle": 0.5, "response": 0.5}}
"""Limits short enough to wait for. What is right stays right on a slow machine: it only takes more attempts."""


@asynccontextmanager
async def behind_chaos(proxy: ChaosProxy, **upstream: Any) -> AsyncIterator[Gateway]:
    """A gateway in front of a proxy in front of an upstream."""
    async with proxy, gateway_for(settings_of(proxy.url, **upstream)) as gateway:
        yield gateway


def settings_of(*urls: str, **upstream: Any) -> dict[str, Any]:
    return {
        "upstreams": [{"name": "fake", "replicas": list(urls), "n": "fanout", "models": ["fake-model"], **upstream}]
    }


# ---- before the first event


@pytest.mark.parametrize("stream", [True, False])
async def test_before_an_upstream_that_accepts_and_says_nothing(upstream: FakeUpstream, stream: bool) -> None:
    proxy = ChaosProxy("127.0.0.1", upstream.port, lambda number: Fault("black hole"))
    async with behind_chaos(proxy, **FAST) as gateway:
        answer = await gateway.ask(n=2, stream=stream)
        assert (answer.status_code, envelope(answer)["code"]) == (504, "upstream_timeout")
        assert upstream.calls == []


async def test_before_half_of_the_calls_are_refused_with_503(start: Start, upstream: FakeUpstream) -> None:
    gateway = await start(retries={"per_leg": 1, "budget": 1.0})
    attempts: dict[int, int] = {}

    def every_other(call: Any) -> Behaviour:
        seed = call.body["seed"]
        attempts[seed] = attempts.get(seed, 0) + 1
        return Behaviour(status=503 if attempts[seed] == 1 and seed % 2 else 200)

    upstream.choose = every_other
    for number in range(5):
        answer = await gateway.stream(n=4, seed=100 * number, headers={})
        assert answer.texts == {index: said(100 * number + index) for index in range(4)}
        assert answer.done


async def test_before_all_is_down_for_a_while(upstream: FakeUpstream) -> None:
    """Clients are told at once while it lasts, and are served again once it is over."""
    quick = {"retries": {"per_leg": 0}, "breaker": {"open": 0.05}}
    proxy = ChaosProxy("127.0.0.1", upstream.port)
    async with behind_chaos(proxy, **quick) as gateway:
        assert (await gateway.ask(n=2)).status_code == 200
        await proxy.refuse()
        proxy.cut()
        for stream in (True, False) * 5:
            answer = await gateway.ask(n=2, stream=stream)
            assert (answer.status_code, envelope(answer)["type"]) in {(502, "server_error"), (503, "server_error")}
        await proxy.listen()
        async with asyncio.timeout(30):
            while (await gateway.ask(n=2)).status_code != 200:
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("stream", [True, False])
async def test_before_a_header_bomb(stream: bool) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n" + b"x-bomb: " + b"x" * 200_000 + b"\r\n\r\n")
        await writer.drain()

    async with raw_server(handle) as url, gateway_for(settings_of(url)) as gateway:
        answer = await gateway.ask(n=2, stream=stream)
        assert (answer.status_code, envelope(answer)["type"]) == (502, "server_error")
        assert "xxx" not in answer.text


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("kind", ["text/event-stream", "application/json"])
async def test_before_an_empty_body(start: Start, upstream: FakeUpstream, kind: str, stream: bool) -> None:
    upstream.behaviour = Behaviour(body=b"", content_type=kind)
    gateway = await start(retries={"per_leg": 0})
    answer = await gateway.ask(n=2, stream=stream)
    assert (answer.status_code, envelope(answer)["type"]) == (502, "server_error")


# ---- in mid-stream: nothing that was cut passes for an answer, wherever it was cut

LONG = Behaviour(pieces=lambda seed: [f"{seed} ", *(f"word {number} " for number in range(12)), "end"])
BREAKS = ("reset", "fin", "half-close", "stall", "garble")


def whole_text(seed: int) -> str:
    return "".join(map(str, LONG.pieces(seed)))


@pytest.mark.parametrize("kind", BREAKS)
@pytest.mark.parametrize("n", [1, 3])
async def test_mid_stream_a_break_at_any_byte(upstream: FakeUpstream, kind: Any, n: int) -> None:
    """One call in two is broken within its first 3,000 bytes; its choice fails, and its siblings' are whole."""
    upstream.behaviour, closing = LONG, replace(LONG, headers={"Connection": "close"})
    choose = drawn(n, {Fault(kind): 0.5}, within=3000)
    proxy = ChaosProxy("127.0.0.1", upstream.port, lambda number: choose(number) if number else CLEAN)
    async with behind_chaos(proxy, retries={"per_leg": 0}, breaker=None, health={"interval": None}, **FAST) as gateway:
        for first in range(0, 60, 12):
            seeds = [100 * number for number in range(first, first + 12)]
            answers = await asyncio.gather(*(gateway.stream(n=n, seed=seed) for seed in seeds))
            for seed, answer in zip(seeds, answers, strict=True):
                texts = {index: whole_text(seed + index) for index in range(n)}
                if answer.status != 200:
                    assert b'"error"' in answer.raw
                elif answer.done:
                    assert answer.texts == texts
                    assert answer.finishes == {index: ["stop"] for index in range(n)}
                else:
                    assert b'"error"' in answer.events[-1]
                    assert all(texts[index].startswith(text) for index, text in answer.texts.items())
            if kind in proxy.suffered:
                break
            upstream.behaviour = closing  # connections were reused, and all that there were are drawn as good ones
        assert proxy.suffered[kind] > 0


@pytest.mark.parametrize("stream", [True, False])
async def test_mid_stream_byte_by_byte_it_is_the_same(upstream: FakeUpstream, stream: bool) -> None:
    proxy = ChaosProxy("127.0.0.1", upstream.port, lambda number: Fault("drip"))
    async with behind_chaos(proxy) as gateway:
        if stream:
            answer = await gateway.stream(n=2, seed=5)
            assert answer.done
            assert answer.texts == {0: said(5), 1: said(6)}
        else:
            whole = (await gateway.ask(n=2, seed=5)).json()
            assert [choice["message"]["content"] for choice in whole["choices"]] == [said(5), said(6)]


async def test_mid_stream_one_leg_a_hundred_times_slower(start: Start, upstream: FakeUpstream) -> None:
    """Its siblings are read to their ends before it has said its second word."""
    slow = Behaviour(hold_after=2)
    upstream.choose = lambda call: slow if call.body["seed"] == 7 else None
    gateway = await start()
    asked = {"model": "fake-model", "messages": [{"role": "user", "content": "hi"}], "n": 3, "seed": 7, "stream": True}
    async with gateway.client.stream("POST", "/v1/chat/completions", json=asked) as answer:
        finished = 0
        async for line in lines_of(answer):
            finished += '"finish_reason":"stop"' in line.replace(" ", "")
            if finished == 2:
                slow.go_on.set()
    assert finished == 3


@pytest.mark.parametrize("behind", [b"", b"data: null\n\n"], ids=["nothing behind it", "an event behind it"])
async def test_mid_stream_done_but_not_closed(start: Start, upstream: FakeUpstream, behind: bytes) -> None:
    """What has said its last word gives its place to who waits, while its sibling goes on."""
    gateway = await start(parallel=2)
    open_ended = Behaviour(behind_done=behind, close=asyncio.Event())
    going = Behaviour(hold_after=2)
    upstream.script(open_ended, going)
    asked = asyncio.create_task(gateway.stream(n=3))
    async with asyncio.timeout(30):  # half a second; the idle limit would be a minute or more
        await upstream.until(lambda: len(upstream.calls) == 3, 30)
        assert upstream.calls[1].closed is None, "the sibling goes on"
        assert (await gateway.ask()).status_code == 200, "another request's"
        going.go_on.set()
        answer = await asked
    assert answer.done and answer.finishes == {index: ["stop"] for index in range(3)}


# ---- a real server is killed, or stopped


@asynccontextmanager
async def a_real_server(folder: Path, **upstream: Any) -> AsyncIterator[tuple[Upstream, Client, Gateway]]:
    """A server process, a client that checks every byte, and a gateway between them."""
    async with stand(folder) as place:
        server = await place.upstream(20.0)
        config = settings(f"{server.url}/v1", retries={"per_leg": 0}, **FAST, **upstream)
        async with gateway_for(config) as gateway:
            client = Client(*gateway.address, Tape(), hang=30.0)
            yield server, client, gateway
            client.close()


async def ask_and(client: Client, server: Upstream, gateway: Gateway, do: str) -> Outcome:
    """Ask for more than is there in time, and `do` something to the server's process once all legs stream."""
    asking = asyncio.create_task(client.ask(Ask(seed=1, n=3, tokens=2000)))
    async with asyncio.timeout(30):
        while await gateway.metric('nproxy_inter_token_seconds_count{model="load",upstream="load"}') < 6:
            await asyncio.sleep(0.02)
    getattr(psutil.Process(server.child.pid), do)()
    return await asking


async def test_mid_stream_sigkill_of_a_server(tmp_path: Path) -> None:
    async with a_real_server(tmp_path) as (server, client, gateway):
        outcome = await ask_and(client, server, gateway, "kill")
        assert (outcome.kind, outcome.status) == ("error", 200)
        assert (await client.ask(Ask(seed=1, n=3, tokens=4))).kind in ("error", "refused")
        await gateway.app.idle()


async def test_mid_stream_sigstop_of_a_server(tmp_path: Path) -> None:
    async with a_real_server(tmp_path, breaker={"open": 0.1}) as (server, client, gateway):
        outcome = await ask_and(client, server, gateway, "suspend")
        assert (outcome.kind, outcome.status) == ("error", 200)
        await gateway.app.idle()
        psutil.Process(server.child.pid).resume()
        async with asyncio.timeout(30):
            while (await client.ask(Ask(seed=1, n=3, tokens=2))).kind != "ok":
                await asyncio.sleep(0.05)
