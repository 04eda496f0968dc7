"""Group K over the wire: failures of upstreams, as clients see them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.fakes.upstream import Behaviour, FakeUpstream, words
from tests.gateway.conftest import CHAT, Gateway, Start, body, envelope, gateway_for


def said(seed: int) -> str:
    return "".join(words(seed))


def scripted(message: str, **fields: Any) -> bytes:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None, **fields}
    return json.dumps({"error": error}).encode()


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stream", [False, True])
async def test_K1_all_legs_refused_alike(gateway: Gateway, upstream: FakeUpstream, n: int, stream: bool) -> None:
    upstream.behaviour = Behaviour(status=400, body=scripted("context too long", param="messages"))
    answer = await gateway.ask(n=n, stream=stream)
    assert answer.status_code == 400
    error = envelope(answer)
    assert (error["message"], error["param"]) == ("context too long", "messages")
    assert len(upstream.calls) <= n, "a 400 is not tried again"


async def test_K2_one_leg_429(start: Start, upstream: FakeUpstream) -> None:
    gateway = await start(retries={"per_leg": 0})
    busy = Behaviour(status=429, headers={"Retry-After": "7"})
    upstream.choose = lambda call: busy if call.body["seed"] == 2 else Behaviour(pause=30)
    answer = await gateway.ask(n=3, seed=1)
    assert answer.status_code == 429
    assert float(answer.headers["retry-after"]) == 7
    await upstream.until(lambda: not upstream.open_calls, 1.0)


async def test_K4_the_weightiest_failure_wins(start: Start, upstream: FakeUpstream) -> None:
    gateway = await start(retries={"per_leg": 0})
    statuses = {1: 500, 2: 400, 3: 429}
    upstream.choose = lambda call: Behaviour(status=statuses[call.body["seed"]], body=scripted("x"))
    assert (await gateway.ask(n=3, seed=1)).status_code == 400


@pytest.mark.parametrize("status", [502, 503, 504, 529])
@pytest.mark.parametrize("n", [1, 3])
async def test_K5_a_leg_is_tried_again_with_its_seed(
    gateway: Gateway, upstream: FakeUpstream, n: int, status: int
) -> None:
    upstream.script(Behaviour(status=status))
    answer = await gateway.ask(n=n, seed=1)
    assert [choice["message"]["content"] for choice in answer.json()["choices"]] == [said(s) for s in range(1, n + 1)]
    assert len(upstream.calls) == n + 1
    first, again = upstream.calls[0], upstream.calls[-1]
    assert first.body["seed"] == again.body["seed"]
    assert again.headers["x-request-id"] == first.headers["x-request-id"] + "-r1"


@pytest.mark.parametrize("how", ["reset", "close"])
async def test_K5_also_while_siblings_stream(gateway: Gateway, upstream: FakeUpstream, how: Any) -> None:
    upstream.script(Behaviour(before_head=how))
    answer = await gateway.stream(n=3, seed=1)
    assert answer.texts == {0: said(1), 1: said(2), 2: said(3)}
    assert answer.done


async def test_K5_retries_end(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.behaviour = Behaviour(status=503, body=scripted("overloaded"))
    answer = await gateway.ask(n=1)
    assert answer.status_code == 503
    assert len(upstream.calls) == 2


@pytest.mark.parametrize("end", ["reset", "cut", "close", "malformed", "error"])
@pytest.mark.parametrize("n", [1, 3])
async def test_K6_K12_P13_a_leg_that_fails_in_mid_stream(
    gateway: Gateway, upstream: FakeUpstream, end: Any, n: int
) -> None:
    upstream.choose = lambda call: Behaviour(end_after=2, end=end) if call.body["seed"] == 1 else None
    answer = await gateway.stream(n=n, seed=1)
    assert answer.status == 200
    assert "error" in answer.chunks[-1], "the error is the last event"
    assert b"[DONE]" not in answer.raw
    assert answer.finishes == {index: ["stop"] for index in range(1, n)}, "siblings ran to their end"
    assert {index: text for index, text in answer.texts.items() if index} == {i: said(i + 1) for i in range(1, n)}


@pytest.mark.parametrize("sent", [b"", b'{"choices": [{"ind', b"[]", b"<html></html>", b'{"choices": []}'])
@pytest.mark.parametrize("n", [1, 3])
async def test_K6_not_streaming(gateway: Gateway, upstream: FakeUpstream, sent: bytes, n: int) -> None:
    upstream.choose = lambda call: Behaviour(body=sent) if call.body["seed"] == 1 else None
    answer = await gateway.ask(n=n, seed=1)
    assert answer.status_code == 502
    envelope(answer)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("stream", [False, True])
async def test_K8_an_error_in_a_200(gateway: Gateway, upstream: FakeUpstream, n: int, stream: bool) -> None:
    upstream.behaviour = Behaviour(body=scripted("no"))
    answer = await gateway.ask(n=n, stream=stream)
    assert answer.status_code == 502
    envelope(answer)


@pytest.mark.parametrize(
    ("sent", "content_type", "message"),
    [
        (b'{"error": "plain words"}', "application/json", "plain words"),
        (b'{"detail": "not allowed"}', "application/json", "not allowed"),
        (b"<html><body><h1>Bad Gateway</h1></body></html>", "text/html", None),
        (b"", "text/plain", None),
    ],
)
async def test_K9_foreign_errors_are_wrapped(
    gateway: Gateway, upstream: FakeUpstream, sent: bytes, content_type: str, message: str | None
) -> None:
    upstream.behaviour = Behaviour(status=403, body=sent, content_type=content_type)
    answer = await gateway.ask(n=2)
    assert answer.status_code == 403
    error = envelope(answer)
    assert "<" not in error["message"]
    if message is not None:
        assert message in error["message"]


async def test_K10_a_failure_before_the_first_event_has_its_status(gateway: Gateway, upstream: FakeUpstream) -> None:
    upstream.behaviour = Behaviour(status=404, body=scripted("no such model"))
    answer = await gateway.stream(n=3)
    assert answer.status == 404


async def test_K10_P14_after_a_while_the_head_goes_out_with_pings(start: Start, upstream: FakeUpstream) -> None:
    gateway = await start(config={"stream": {"headers_after_seconds": 0.05, "ping_seconds": 0.05}})
    held = asyncio.Event()
    upstream.behaviour = Behaviour(hold=held, status=400, body=scripted("late"))
    asked = asyncio.create_task(gateway.stream(n=2))
    await upstream.until(lambda: len(upstream.open_calls) == 2)
    await asyncio.sleep(0.3)
    held.set()
    answer = await asked
    assert answer.status == 200
    head, _, _ = answer.raw.partition(b"data: ")
    assert head.count(b": ping\n\n") >= 2
    assert head.replace(b": ping\n\n", b"") == b""
    assert answer.chunks[-1]["error"]["message"] == "late"


async def test_K11_an_upstream_that_is_down(upstream: FakeUpstream) -> None:
    async with FakeUpstream() as gone:
        url = gone.url
    config = {"upstreams": [{"name": "gone", "replicas": [url], "api_key": "sk-secret"}]}
    async with gateway_for(config) as gateway:
        for stream in (False, True):
            answer = await gateway.ask(n=2, stream=stream)
            assert answer.status_code == 502
            error = envelope(answer)
            assert error["code"] == "upstream_unavailable"
            assert "127.0.0.1" not in answer.text
            assert "sk-secret" not in answer.text
        assert (await gateway.client.get("/ready")).status_code == 503
        assert (await gateway.client.get("/health")).status_code == 200


@pytest.mark.parametrize("n", [1, 2])
async def test_K14_a_json_body_in_answer_to_a_stream(gateway: Gateway, upstream: FakeUpstream, n: int) -> None:
    upstream.behaviour = Behaviour(json_for_stream=True)
    answer = await gateway.stream(n=n, seed=1)
    assert answer.texts == {index: said(index + 1) for index in range(n)}
    assert answer.finishes == {index: ["stop"] for index in range(n)}
    assert answer.done


@pytest.mark.parametrize("status", [401, 403])
async def test_K15_whose_key_it_was(start: Start, upstream: FakeUpstream, status: int) -> None:
    upstream.behaviour = Behaviour(status=status, body=scripted("bad key"))
    own = await (await start(api_key="sk-own")).ask(n=2)
    assert own.status_code == 502
    assert envelope(own)["code"] == "upstream_auth"
    clients = await (await start()).ask(n=2)
    assert clients.status_code == status


async def test_N2_a_leg_that_times_out(start: Start, upstream: FakeUpstream) -> None:
    gateway = await start(timeouts={"first_event": 0.1, "response": 0.1}, retries={"per_leg": 0})
    upstream.behaviour = Behaviour(hold=asyncio.Event())
    for stream in (False, True):
        answer = await gateway.ask(n=2, stream=stream)
        assert answer.status_code == 504
        envelope(answer)
    await upstream.until(lambda: not upstream.open_calls, 1.0)


async def test_a_fault_of_our_own_tells_nothing(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(model: str) -> Any:
        raise KeyError("inner secret")

    monkeypatch.setattr(gateway.app.upstreams, "route", broken)
    answer = await gateway.post(body(), CHAT)
    assert answer.status_code == 500
    assert "inner secret" not in answer.text
    assert envelope(answer)["code"] == "internal_error"
