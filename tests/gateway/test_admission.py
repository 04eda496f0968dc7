"""What admission means to a client: headers of its rates, what counts against them, and how it is turned away."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from nproxy.config import digest_of
from nproxy.gateway.admission.memory import LOOK_SECONDS, Memory
from nproxy.gateway.driver import Drive
from nproxy.gateway.serve import drain
from tests.clients import lines_of
from tests.fakes.upstream import Behaviour, FakeUpstream
from tests.gateway.conftest import CHAT, Gateway, Start, body, envelope, gateway_for, upstream_settings
from tests.gateway.raw import apart, gauges_return, post

RATES = {"requests_per_minute": 5, "choices_per_minute": 12, "tokens_per_minute": 6000}
PREFIX = "x-ratelimit-"


def shown(headers: Any) -> dict[str, str]:
    return {name.removeprefix(PREFIX): value for name, value in headers.items() if name.startswith(PREFIX)}


async def test_every_answer_says_what_is_left(start: Start, upstream: FakeUpstream) -> None:
    gateway: Gateway = await start(config={"limits": RATES})
    listed = shown((await gateway.client.get("/v1/models")).headers)
    assert (listed["remaining-requests"], listed["reset-requests"]) == ("5", "0s")
    whole = await gateway.ask(n=3, max_tokens=20)
    assert whole.status_code == 200
    left = shown(whole.headers)
    assert (left["limit-requests"], left["remaining-requests"], left["remaining-choices"]) == ("5", "4", "9")
    guessed = len(json.dumps(body(n=3, max_tokens=20))) // 4 + 3 * 20
    assert abs(int(left["remaining-tokens"]) - (6000 - guessed)) <= 100
    streamed = await gateway.stream(n=2)
    assert shown(streamed.headers)["remaining-requests"] == "3"
    wrong = await gateway.ask(n=0)
    assert wrong.status_code == 400
    assert shown(wrong.headers)["remaining-requests"] == "3", "what is no request is not counted"
    upstream.behaviour = Behaviour(status=500)
    failed = await gateway.ask(n=1)
    assert failed.status_code == 500
    assert shown(failed.headers)["remaining-requests"] == "2"
    assert shown((await gateway.client.get("/health")).headers) == {}


async def test_beyond_a_rate(start: Start, upstream: FakeUpstream) -> None:
    gateway: Gateway = await start(config={"limits": RATES})
    for n in (3, 3, 3, 2):
        assert (await gateway.ask(n=n)).status_code == 200
    calls = len(upstream.calls)
    for n, wait in ((3, 10), (2, 5)):
        answer = await gateway.ask(n=n)
        assert answer.status_code == 429
        error = envelope(answer)
        assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
        assert "12 choices per minute" in error["message"]
        seconds, milliseconds = int(answer.headers["retry-after"]), int(answer.headers["retry-after-ms"])
        assert wait - 3 <= seconds <= wait
        assert (seconds - 1) * 1000 <= milliseconds <= seconds * 1000
        assert shown(answer.headers)["remaining-choices"] == "1"
        assert shown(answer.headers)["remaining-requests"] == "1", "a refusal is not counted"
    assert len(upstream.calls) == calls
    assert (await gateway.ask(n=1)).status_code == 200
    assert (await gateway.post(b"not even read")).status_code == 429, "nothing that it could say would help"
    other = await gateway.post(body(n=3), headers={"authorization": "Bearer another"})
    assert other.status_code == 200, "without auth, what is shown tells callers apart"
    assert await gateway.metric('nproxy_key_limited_total{key="other",what="choices"}') == 2
    assert await gateway.metric('nproxy_requests_refused_total{reason="choices"}') == 2
    assert await gateway.metric('nproxy_requests_refused_total{reason="requests"}') == 1


async def test_tokens_are_charged_as_the_client_is_told(start: Start, upstream: FakeUpstream) -> None:
    gateway: Gateway = await start(config={"limits": {"tokens_per_minute": 600_000}})
    answer = await gateway.ask(n=2, max_tokens=100_000)
    usage = answer.json()["usage"]
    assert shown(answer.headers)["remaining-tokens"] < "400000"
    left = int(shown((await gateway.ask(n=1)).headers)["remaining-tokens"])
    guess = len(json.dumps(body(n=1))) // 4
    assert abs(600_000 - usage["total_tokens"] - guess - left) <= 10_000, "a second brings 10,000 back"
    upstream.behaviour = Behaviour(status=400)
    await gateway.ask(n=2, max_tokens=200_000)
    left = int(shown((await gateway.ask(n=1)).headers)["remaining-tokens"])
    assert left > 500_000, "what failed was not spent"


async def test_a_fault_of_our_own_costs_no_tokens(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(drive: Drive) -> None:
        raise RuntimeError("nobody's fault but ours")

    gateway: Gateway = await start(config={"limits": {"tokens_per_minute": 600_000}})
    with monkeypatch.context() as patched:
        patched.setattr(Drive, "run", broken)
        assert (await gateway.ask(n=2, max_tokens=200_000)).status_code == 500
    left = int(shown((await gateway.ask(n=1)).headers)["remaining-tokens"])
    assert left > 500_000


async def test_a_stream_that_breaks_off_is_charged_as_what_came(start: Start, upstream: FakeUpstream) -> None:
    gateway: Gateway = await start(config={"limits": {"tokens_per_minute": 6000}})
    upstream.behaviour = Behaviour(pieces=lambda seed: ["word "] * 1000, end_after=300)
    answer = await gateway.ask(n=2, max_tokens=2000, stream=True)
    assert int(shown(answer.headers)["remaining-tokens"]) <= 2000
    assert b"upstream" in answer.content
    await gauges_return(gateway)
    upstream.behaviour = Behaviour()
    left = int(shown((await gateway.ask(n=1)).headers)["remaining-tokens"])
    assert 4500 < left < 5700, "two times 300 words came, and a second brings 100 back"


async def test_who_leaves_before_the_usage_pays_for_what_came(start: Start, upstream: FakeUpstream) -> None:
    gateway: Gateway = await start(config={"limits": {"tokens_per_minute": 100}})
    upstream.behaviour = Behaviour(pieces=lambda seed: ["word "] * 1000, hold_after=300)
    async with gateway.client.stream("POST", CHAT, json=body(stream=True)) as answer:
        lines = lines_of(answer)
        for _ in range(200):
            await anext(lines)
    await gauges_return(gateway)
    refused = await gateway.ask(n=1)
    assert (refused.status_code, envelope(refused)["code"]) == (429, "rate_limit_exceeded")


async def test_a_keys_own_limits(start: Start, upstream: FakeUpstream, tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    lines = [
        f"  - {{name: {name}, hash: [sha256:{digest_of(name).hex()}], choices: {choices}, {rate}}}"
        for name, choices, rate in (("narrow", 2, "requests_per_minute: 7"), ("free", 9, "weight: 2"))
    ]
    keys.write_text("\n".join(["keys:", *lines]))
    gateway: Gateway = await start(api_key="none", config={"auth": {"api_keys_file": str(keys)}})
    narrow, free = {"authorization": "Bearer narrow"}, {"authorization": "Bearer free"}
    assert envelope(await gateway.post(body(n=3), headers=narrow))["code"] == "integer_above_max_value"
    answer = await gateway.post(body(n=2), headers=narrow)
    assert shown(answer.headers) == {"limit-requests": "7", "remaining-requests": "6"} | {
        "reset-requests": shown(answer.headers)["reset-requests"]
    }
    assert shown((await gateway.post(body(n=3), headers=free)).headers) == {}
    assert (await gateway.ask()).status_code == 401
    assert shown((await gateway.ask()).headers) == {}
    counted = gateway.app.metrics.registry.get_sample_value
    assert counted("nproxy_key_requests_total", {"key": "narrow"}) == 1
    assert counted("nproxy_key_tokens_total", {"key": "free", "type": "completion"})


async def test_what_passes_through_counts_as_one_choice(start: Start, upstream: FakeUpstream) -> None:
    gateway: Gateway = await start(config={"limits": RATES | {"inflight_choices": 1}, "n_policy": {"max_n": 1}})
    left = shown((await gateway.post({"input": "x"}, "/v1/embeddings")).headers)
    assert (left["remaining-requests"], left["remaining-choices"]) == ("4", "11")
    held = asyncio.Event()
    upstream.behaviour = Behaviour(hold=held)
    generated = asyncio.create_task(gateway.ask())
    await upstream.until(lambda: len(upstream.open_calls) == 1)
    passed = asyncio.create_task(gateway.post({"input": "x"}, "/v1/embeddings"))
    async with asyncio.timeout(5):
        while gateway.app.admission.waiting == 0:
            await asyncio.sleep(0.01)
    assert await gateway.metric("nproxy_queue_choices") == 1
    held.set()
    assert [(await generated).status_code, (await passed).status_code] == [200, 200]
    await gauges_return(gateway)


# ---- turned away at the door


async def refused_at_the_door(gateway: Gateway, sent: bytes) -> tuple[int, dict[str, str], bytes, asyncio.StreamWriter]:
    """Send bytes on a connection of their own, and read the head and body of one answer."""
    reader, writer = await asyncio.open_connection(*gateway.address)
    writer.write(sent)
    async with asyncio.timeout(5):
        head = await reader.readuntil(b"\r\n\r\n")
        status, headers, _ = apart(head)
        content = await reader.readexactly(int(headers["content-length"]))
    return status, headers, content, writer


@pytest.mark.parametrize(
    ("head", "content", "kept"),
    [
        ("Content-Length: 40", b"x" * 40, True),
        ("Content-Length: 40", b"x" * 5, True),
        ("Content-Length: 5000000", b"x" * 5, False),
        ("Transfer-Encoding: chunked", b"5\r\nxxxxx\r\n", False),
    ],
    ids=["small", "small, under way", "large", "of unknown length"],
)
async def test_short_of_memory(start: Start, upstream: FakeUpstream, head: str, content: bytes, kept: bool) -> None:
    """Refused before the body is here; one that may be long is not waited for on a connection that is to be kept."""
    gateway: Gateway = await start(config={"limits": {"memory_mib": 1}})
    status, headers, answer, writer = await refused_at_the_door(gateway, post(content, head))
    assert status == 503
    assert json.loads(answer)["error"]["code"] == "overloaded"
    assert int(headers["retry-after"]) >= 1
    assert (headers.get("connection") != "close") is kept
    writer.close()
    assert (await gateway.client.get("/health")).status_code == 200
    assert await gateway.metric('nproxy_shed_total{reason="memory"}') == 1
    assert upstream.calls == []


async def test_a_kept_connection_goes_on_after_a_refusal(start: Start, upstream: FakeUpstream) -> None:
    gateway: Gateway = await start(config={"limits": {"requests_per_minute": 1}})
    sent = post(json.dumps(body()).encode(), f"Content-Length: {len(json.dumps(body()))}")
    reader, writer = await asyncio.open_connection(*gateway.address)
    statuses = []
    for _ in range(3):
        writer.write(sent)
        async with asyncio.timeout(5):
            status, headers, _ = apart(await reader.readuntil(b"\r\n\r\n"))
            await reader.readexactly(int(headers["content-length"]))
        statuses.append(status)
    assert statuses == [200, 429, 429]
    writer.close()


async def test_large_bodies_have_to_fit_together(start: Start, upstream: FakeUpstream) -> None:
    gateway: Gateway = await start()
    gateway.app.admission.bodies.limit = 100_000
    held = asyncio.Event()
    upstream.behaviour = Behaviour(hold=held)
    long = body(messages=[{"role": "user", "content": "x" * 60_000}])
    first = asyncio.create_task(gateway.post(long))
    await upstream.until(lambda: len(upstream.open_calls) == 1)
    for path in (CHAT, "/v1/completions"):
        answer = await gateway.post(long, path)
        assert answer.status_code == 503
        assert envelope(answer)["code"] == "overloaded"
    assert await gateway.metric('nproxy_shed_total{reason="bodies"}') == 2
    second = asyncio.create_task(gateway.post(body(), headers={"Authorization": "Bearer another"}))
    await upstream.until(lambda: len(upstream.open_calls) == 2)
    held.set()
    assert [(await first).status_code, (await second).status_code] == [200, 200]
    assert gateway.app.admission.bodies.held == 0


@pytest.mark.parametrize(("announced", "expected"), [(60_000, 503), (1 << 30, 413)])
async def test_what_is_announced_is_refused_before_it_comes(
    start: Start, upstream: FakeUpstream, announced: int, expected: int
) -> None:
    """For want of room, where it would be taken at another time."""
    gateway: Gateway = await start()
    gateway.app.admission.bodies.limit, gateway.app.settings.body_limit = 100_000, 80_000
    held = asyncio.Event()
    upstream.behaviour = Behaviour(hold=held)
    size = 60_000 if expected == 503 else 10_000
    first = asyncio.create_task(gateway.ask(messages=[{"role": "user", "content": "x" * size}]))
    await upstream.until(lambda: len(upstream.open_calls) == 1)
    reader, writer = await asyncio.open_connection(*gateway.address)
    writer.write(post(b"", f"Content-Length: {announced}", "Authorization: Bearer another"))
    async with asyncio.timeout(10):
        status, _, _ = apart(await reader.readuntil(b"\r\n\r\n"))
    assert status == expected
    held.set()
    assert (await first).status_code == 200
    writer.close()


async def test_a_body_that_does_not_come_takes_no_room(start: Start) -> None:
    """Who sends nothing of what he announced would keep all others from sending theirs, for as long as he may take."""
    gateway: Gateway = await start()
    gateway.app.admission.bodies.limit = 100_000
    writers = []
    for number in range(3):
        _, writer = await asyncio.open_connection(*gateway.address)
        writer.write(post(b"{", "Content-Length: 90000", f"Authorization: Bearer {number}"))
        writers.append(writer)
    async with asyncio.timeout(5):
        while gateway.app.inflight < 3 or gateway.app.admission.bodies.held < 3:
            await asyncio.sleep(0.01)
    long = body(messages=[{"role": "user", "content": "x" * 60_000}])
    assert (await gateway.post(long, headers={"Authorization": "Bearer another"})).status_code == 200
    for writer in writers:
        writer.close()
    await gauges_return(gateway)
    assert gateway.app.admission.bodies.held == 0


async def test_bodies_that_outgrow_the_room_are_given_up(start: Start) -> None:
    gateway: Gateway = await start()
    bodies = gateway.app.admission.bodies
    bodies.limit = 100_000
    openings = [await asyncio.open_connection(*gateway.address) for _ in range(2)]
    for held, sent in ((2, b" "), (80_002, b" " * 40_000)):
        for number, (_, writer) in enumerate(openings):
            head = "Content-Length: 90000", f"Authorization: Bearer {number}"
            writer.write(post(sent, *head) if held == 2 else sent)
        async with asyncio.timeout(5):
            while bodies.held < held:
                await asyncio.sleep(0.01)
    reader, writer = openings[0]
    writer.write(b" " * 40_000)
    async with asyncio.timeout(5):
        status, headers, _ = apart(await reader.readuntil(b"\r\n\r\n"))
    assert (status, headers["connection"]) == (503, "close")
    for _, writer in openings:
        writer.close()
    await gauges_return(gateway)
    assert bodies.held == 0


@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
async def test_memory_is_looked_at_again_before_a_body_is_parsed(
    start: Start, upstream: FakeUpstream, path: str
) -> None:
    """Many may have come in while there was room; parsed they take many times their bytes."""
    gateway: Gateway = await start(models=["fake-model"])
    reads = iter([0])
    gateway.app.admission.memory = Memory(1 << 20, lambda: next(reads, 2 << 20))
    reader, writer = await asyncio.open_connection(*gateway.address)
    content = json.dumps(body(path)).encode()
    head = post(b"", f"Content-Length: {len(content)}").replace(CHAT.encode(), path.encode())
    writer.write(head + content[:5])
    async with asyncio.timeout(5):
        while gateway.app.admission.bodies.held < 5:
            await asyncio.sleep(0.01)
        await asyncio.sleep(LOOK_SECONDS)
        writer.write(content[5:])
        status, _, _ = apart(await reader.readuntil(b"\r\n\r\n"))
    assert status == 503
    assert upstream.requests == [] or all(seen.target.endswith("/models") for seen in upstream.requests)
    writer.close()


# ---- shutting down


async def test_L5_who_waits_is_served_while_the_gateway_drains(start: Start, upstream: FakeUpstream) -> None:
    gateway: Gateway = await start(config={"limits": {"inflight_choices": 2}, "n_policy": {"max_n": 2}})
    held = asyncio.Event()
    upstream.behaviour = Behaviour(hold=held)
    first = asyncio.create_task(gateway.ask(n=2))
    await upstream.until(lambda: len(upstream.open_calls) == 2)
    waits = asyncio.create_task(gateway.ask(n=2))
    async with asyncio.timeout(5):
        while gateway.app.admission.waiting != 2:
            await asyncio.sleep(0.01)
    draining = asyncio.create_task(drain(gateway.app, 30))
    await asyncio.sleep(0)
    refused = await gateway.ask(n=1)
    assert refused.status_code == 503
    assert envelope(refused)["code"] == "shutting_down"
    held.set()
    assert [(await first).status_code, (await waits).status_code] == [200, 200]
    await draining


async def test_L5_who_waits_at_the_drain_limit_gets_an_error(start: Start, upstream: FakeUpstream) -> None:
    gateway: Gateway = await start(config={"limits": {"inflight_choices": 1}, "n_policy": {"max_n": 1}})
    upstream.behaviour = Behaviour(hold=asyncio.Event())
    first = asyncio.create_task(gateway.ask())
    await upstream.until(lambda: len(upstream.open_calls) == 1)
    waits = asyncio.create_task(gateway.ask())
    async with asyncio.timeout(5):
        while gateway.app.admission.waiting != 1:
            await asyncio.sleep(0.01)
    await drain(gateway.app, 0.05)
    for answer in (await first, await waits):
        assert answer.status_code == 503
        assert envelope(answer)["code"] == "shutting_down"
    assert len(upstream.calls) == 1


async def test_limits_change_while_it_runs(upstream: FakeUpstream) -> None:
    settings = {"upstreams": [upstream_settings(upstream)], "n_policy": {"max_n": 4}}
    async with gateway_for({**settings, "limits": {"inflight_choices": 4}}) as gateway:
        held = asyncio.Event()
        upstream.behaviour = Behaviour(hold=held)
        first = asyncio.create_task(gateway.ask(n=4))
        await upstream.until(lambda: len(upstream.open_calls) == 4)
        waits = asyncio.create_task(gateway.ask(n=4))
        config = gateway.app.config
        more = config.limits.model_copy(update={"inflight_choices": 8})
        gateway.app.reconfigure(config.model_copy(update={"limits": more}))
        await upstream.until(lambda: len(upstream.open_calls) == 8)
        held.set()
        assert [(await first).status_code, (await waits).status_code] == [200, 200]


# ---- another upstream


async def test_an_upstream_without_room_is_no_way_out(upstream: FakeUpstream) -> None:
    """What the client reads is what befell its request, and not that somebody else is busy or smaller."""
    async with FakeUpstream(Behaviour(status=503)) as ill:
        upstreams = [
            upstream_settings(ill, name="ill", fallback=["well"], models=["fake-model"], retries={"per_leg": 0}),
            upstream_settings(upstream, name="well", models=["fake-model"], max_inflight=2),
        ]
        async with gateway_for({"upstreams": upstreams, "limits": {"queue_seconds": 0.05}}) as gateway:
            narrow = await gateway.ask(n=2)
            assert (narrow.status_code, narrow.headers["x-nproxy-upstream"]) == (200, "well")
            assert (await gateway.ask(n=3)).status_code == 503
            held = asyncio.Event()
            upstream.behaviour = Behaviour(hold=held)
            holds = asyncio.create_task(gateway.ask(n=2))
            await upstream.until(lambda: len(upstream.open_calls) == 2)
            assert (await gateway.ask(n=1)).status_code == 503
            held.set()
            assert (await holds).status_code == 200
            assert (gateway.app.admission.taken, gateway.app.admission.waiting) == (0, 0)
