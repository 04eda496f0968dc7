"""The access log: one line for each request, with the fields that docs/reference/logs.md lists, and no more."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from nproxy.gateway import access
from nproxy.gateway.access import FIELDS
from nproxy.gateway.callers import Caller
from nproxy.gateway.content import MOST_BYTES, Content
from nproxy.gateway.exchange import Exchange
from nproxy.gateway.passthrough import handler
from nproxy.gateway.record import CLIENT_LEFT, Record
from nproxy.gateway.response_writer import ClientLeft
from nproxy.gateway.tracing import Tracing
from nproxy.telemetry import logs
from nproxy.telemetry.trace_context import unrecorded
from tests.fakes.upstream import MODEL, Behaviour, FakeUpstream, raw_server
from tests.gateway.conftest import CHAT, Gateway, Start, body, gateway_for, upstream_settings
from tests.gateway.raw import leave, open_request
from tests.waiting import until

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}


class Lines(logging.Handler):
    """The access log's records, down to debug."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    @property
    def last(self) -> dict[str, Any]:
        """The fields of the last line."""
        return fields(self.records[-1])


def fields(record: logging.LogRecord) -> dict[str, Any]:
    found: dict[str, Any] = vars(record)["fields"]
    return found


@pytest.fixture
def lines() -> Iterator[Lines]:
    lines = Lines()
    logs.access.addHandler(lines)
    yield lines
    logs.access.removeHandler(lines)


async def test_a_stream_of_several_choices(gateway: Gateway, upstream: FakeUpstream, lines: Lines) -> None:
    upstream.script(Behaviour(status=503))
    answer = await gateway.stream(n=3, headers={**PARENT, "x-request-id": "r1"})
    await gateway.app.idle()
    told = lines.last
    times = {name: told.pop(name) for name in ("queue_seconds", "first_token_seconds", "seconds")}
    assert 0 <= times["queue_seconds"] <= times["first_token_seconds"] <= times["seconds"]
    assert len(answer.raw) < told.pop("bytes_out") < len(answer.raw) + 1000, "the head is with it"
    assert told.pop("bytes_in") == len(json.dumps(body(stream=True, n=3)))
    assert told.pop("prompt_tokens") > 0 < told.pop("completion_tokens")
    assert told == {
        "request_id": "r1",
        "trace_id": TRACE,
        "client": "127.0.0.1",
        "method": "POST",
        "status": 200,
        "outcome": "ok",
        "upstream": "fake",
        "replicas": [upstream.url],
        "model": MODEL,
        "mode": "fanout",
        "n": 3,
        "choices": 3,
        "legs": 3,
        "attempts": 4,
        "finish_reasons": {"stop": 3},
    }
    assert answer.headers["x-nproxy-legs"] == "3", "which leaves out what was made again"
    assert lines.records[-1].getMessage() == "chat/completions"


async def test_the_replicas_that_were_asked(upstream: FakeUpstream, lines: Lines) -> None:
    asked: list[str] = []

    def refuse_first(url: str) -> Behaviour | None:
        asked.append(url)
        return Behaviour(status=503) if len(asked) == 1 else None

    async with FakeUpstream() as other:
        for server in (upstream, other):
            server.choose = lambda _, url=server.url: refuse_first(url)
        settings = upstream_settings(upstream, replicas=[upstream.url, other.url])
        async with gateway_for({"upstreams": [settings]}) as gateway:
            assert (await gateway.ask()).status_code == 200
            await gateway.app.idle()
    assert lines.last["replicas"] == asked and len({*asked}) == 2
    assert (lines.last["attempts"], lines.last["legs"]) == (2, 1)


async def test_what_passes_through(gateway: Gateway, upstream: FakeUpstream, lines: Lines) -> None:
    await gateway.post({"model": MODEL, "input": "x"}, "/v1/embeddings?key=canary")
    await gateway.app.idle()
    told = lines.last
    assert (told["mode"], told["path"], told["attempts"]) == ("passthrough", "/v1/embeddings", 1)
    assert (told["replicas"], told["status"], told["outcome"]) == ([upstream.url], 200, "ok")
    assert told["queue_seconds"] >= 0


async def test_why_what_passes_through_failed(lines: Lines) -> None:
    async with gateway_for({"upstreams": [{"name": "gone", "replicas": ["http://127.0.0.1:9/v1"]}]}) as gateway:
        await gateway.post({"input": "x"}, "/v1/embeddings")
        await gateway.app.idle()
    assert (lines.last["status"], lines.last["outcome"]) == (502, "connect")


async def test_the_model_of_what_passes_through(upstream: FakeUpstream, lines: Lines) -> None:
    other = {"name": "other", "replicas": ["http://127.0.0.1:9/v1"], "models": ["m9"]}
    async with gateway_for({"upstreams": [upstream_settings(upstream, models=[MODEL]), other]}) as gateway:
        await gateway.post({"model": MODEL, "input": "x"}, "/v1/embeddings")
        await gateway.app.idle()
    assert (lines.last["model"], lines.last["upstream"]) == (MODEL, "fake")


async def test_a_reader_that_takes_nothing_has_not_left(start: Start, upstream: FakeUpstream, lines: Lines) -> None:
    gateway = await start(config={"limits": {"write_seconds": 0.4}})
    for streams in (True, False):
        upstream.behaviour = Behaviour(pieces=lambda seed: ["x" * 100_000] * 200)
        _, writer = await open_request(gateway, body(stream=streams))
        await upstream.until(lambda: len(upstream.calls) == 1 + (not streams))  # noqa: B023 - of this round
        async with asyncio.timeout(30):  # 20 MB are made first
            await gateway.app.idle()
        writer.close()
        assert (lines.last["status"], lines.last["outcome"]) == (499, "slow_reader")
        assert "client_left" not in lines.last


async def test_paths_that_nothing_answers(gateway: Gateway, lines: Lines) -> None:
    for target in ("/nowhere?key=canary", f"/{'x' * 1000}"):
        assert (await gateway.client.get(target)).status_code == 404
    await gateway.app.idle()
    short, long = (vars(record)["fields"] for record in lines.records)
    assert (short["status"], short["path"], long["path"]) == (404, "/nowhere", f"/{'x' * 255}")
    assert {record.levelname for record in lines.records} == {"INFO"}
    assert (short["error_code"], long["error_code"]) == ("unknown_url", "unknown_url")


async def test_strangers_write_no_path(upstream: FakeUpstream, lines: Lines) -> None:
    config = {"upstreams": [upstream_settings(upstream)], "auth": {"api_key": "sk-known"}}
    async with gateway_for(config) as gateway:
        assert (await gateway.client.get("/sk-canary")).status_code == 401
        assert "path" not in lines.last
        await gateway.client.get("/nowhere", headers={"authorization": "Bearer sk-known"})
    assert (lines.last["path"], lines.last["status"]) == ("/nowhere", 404)


async def test_a_client_that_leaves(gateway: Gateway, upstream: FakeUpstream, lines: Lines) -> None:
    upstream.behaviour = Behaviour(hold_after=1)
    _, writer = await open_request(gateway, body(stream=True))
    await upstream.until(lambda: len(upstream.calls) == 1)
    await leave(writer, "reset")
    await gateway.app.idle()
    writer.close()
    assert (lines.last["status"], lines.last["client_left"]) == (499, True)


async def test_a_client_that_leaves_before_the_head(gateway: Gateway, upstream: FakeUpstream, lines: Lines) -> None:
    """The line says what was planned, as no answer says what happened."""
    upstream.behaviour = Behaviour(hold=asyncio.Event())
    _, writer = await open_request(gateway, body(n=3))
    await upstream.until(lambda: len(upstream.calls) == 3)
    await leave(writer, "reset")
    await gateway.app.idle()
    writer.close()
    assert (lines.last["mode"], lines.last["legs"], lines.last["client_left"]) == ("fanout", 3, True)


async def test_a_client_that_leaves_while_it_waits_for_a_fallback(
    start: Start, upstream: FakeUpstream, lines: Lines
) -> None:
    """That the first upstream failed is no outcome, and no reason to charge the request as a stream that broke off."""
    down = [{"name": "down", "replicas": [upstream.url], "models": ["m"], "fallback": ["fake"]}]
    full = upstream_settings(upstream, models=[MODEL, "m"], max_inflight=1)
    upstream.behaviour = Behaviour(hold=asyncio.Event())
    gateway = await start(config={"upstreams": [*down, full], "limits": {"tokens_per_minute": 1000}})
    holds = asyncio.create_task(gateway.ask())
    await upstream.until(lambda: len(upstream.calls) == 1)
    upstream.choose = lambda call: Behaviour(status=503)
    _, writer = await open_request(gateway, body(model="m", max_tokens=400))
    await until(lambda: gateway.app.admission.waiting == 1)
    await leave(writer, "reset")
    await until(lambda: gateway.app.inflight == 1)
    writer.close()
    assert (lines.last["status"], lines.last.get("outcome"), lines.last["upstream"]) == (499, None, "down")
    upstream.behaviour.let_go()
    await holds
    upstream.choose = None
    assert 500 < int((await gateway.ask()).headers["x-ratelimit-remaining-tokens"]) < 600


async def test_a_client_that_leaves_what_is_tried_again(lines: Lines) -> None:
    """That the first attempt failed is no outcome of what passes through."""
    asked = asyncio.Event()

    async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        asked.set()
        await reader.read()

    async with raw_server(says_nothing) as url:
        first = {"name": "first", "replicas": ["http://127.0.0.1:9/v1"], "models": [MODEL], "fallback": ["second"]}
        second = {"name": "second", "replicas": [url], "models": [MODEL]}
        async with gateway_for({"upstreams": [first, second]}) as gateway, asyncio.timeout(20):
            leaves = asyncio.create_task(gateway.post({"model": MODEL}, "/v1/embeddings"))
            await asked.wait()
            leaves.cancel()
            await asyncio.wait([leaves])
            await gateway.app.idle()
    assert (lines.last["status"], lines.last.get("outcome"), lines.last["upstream"]) == (499, None, "second")


async def test_a_wait_in_vain_is_timed(start: Start, upstream: FakeUpstream, lines: Lines) -> None:
    limits = {"inflight_choices": 1, "queue_seconds": 0.06}  # the loop counts whole milliseconds, and may be early
    gateway = await start(config={"limits": limits, "n_policy": {"max_n": 1}})
    upstream.behaviour = Behaviour(hold_after=1)
    _, writer = await open_request(gateway, body(stream=True))
    await upstream.until(lambda: len(upstream.calls) == 1)
    assert (await gateway.ask()).status_code == 429
    assert lines.last["queue_seconds"] >= 0.05
    assert lines.last["error_code"] == "overloaded"
    assert "attempts" not in lines.last
    writer.close()


# Prompts and answers, where they are asked for


@pytest.fixture
async def telling(upstream: FakeUpstream, caplog: pytest.LogCaptureFixture) -> AsyncIterator[Gateway]:
    upstream.behaviour = Behaviour(n="native", pieces=lambda seed: ["hel", "lo"])
    telemetry = {"log_content": True}
    settings = upstream_settings(upstream, n="native")
    async with gateway_for({"upstreams": [settings], "telemetry": telemetry}) as gateway:
        assert [record.levelname for record in caplog.records if "log_content" in record.getMessage()] == ["WARNING"]
        yield gateway


ASKED = [{"role": "system", "content": "be short"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}]


@pytest.mark.parametrize("stream", [False, True])
async def test_content_is_told_where_it_is_asked_for(telling: Gateway, lines: Lines, stream: bool) -> None:
    await telling.post(body(messages=ASKED, n=2, stream=stream))
    await telling.app.idle()
    assert lines.last["input"] == [
        {"role": "system", "parts": [{"type": "text", "content": "be short"}]},
        {"role": "user", "parts": [{"type": "text", "content": "hi"}]},
    ]
    said = {"role": "assistant", "parts": [{"type": "text", "content": "hello"}], "finish_reason": "stop"}
    assert lines.last["output"] == [said, said]


async def test_prompts_and_texts_of_completions(telling: Gateway, lines: Lines) -> None:
    path = "/v1/completions"
    await telling.post(body(path, prompt=["one", "two"]), path)
    await telling.app.idle()
    assert [part["content"] for part in lines.last["input"][0]["parts"]] == ["one", "two"]
    assert lines.last["output"][0]["parts"] == [{"type": "text", "content": "hello"}]


async def test_no_content_of_what_was_not_understood(telling: Gateway, lines: Lines) -> None:
    assert (await telling.post({"n": "many"})).status_code == 400
    await telling.app.idle()
    assert not {"input", "output", "n", "choices", "legs", "attempts", "client_left"} & lines.last.keys()


async def test_no_content_unless_asked_for(gateway: Gateway, lines: Lines) -> None:
    await gateway.ask()
    await gateway.app.idle()
    assert not {"input", "output"} & lines.last.keys()


def test_calls_and_thoughts_are_parts() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]}
    content = asked()
    content.add(json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}).encode())
    assert content.output() == [
        {
            "role": "assistant",
            "parts": [
                {"type": "reasoning", "content": "hm"},
                {"type": "tool_call", "id": "c", "name": "f", "arguments": "{}"},
            ],
            "finish_reason": "tool_calls",
        }
    ]


def test_long_content_is_bounded() -> None:
    content = asked(content="x" * MOST_BYTES)
    assert content.input() == []
    for _ in range(3):
        content.add(b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % (b"y" * 150_000))
    assert [len(part["content"]) for part in content.output()[0]["parts"]] == [150_000]
    whole = asked()
    whole.add(b'{"choices":[{"index":0,"message":{"content":"%b"}}]}' % (b"y" * MOST_BYTES))
    assert whole.output() == []


def asked(**message: Any) -> Content:
    from nproxy.openai.body import Body
    from nproxy.openai.requests import Limits, parse_chat

    content = Content()
    sent = body(CHAT, messages=[{"role": "user", "content": "hi", **message}])
    content.asked(parse_chat(Body.parse(json.dumps(sent).encode()), Limits()))
    return content


# Its form


def test_every_field_is_described_in_the_order_of_the_line() -> None:
    content = asked()
    content.add(b'{"choices":[{"index":0,"message":{"content":"hello"}}]}')
    record = Record(
        started=1.0,
        tracing=Tracing(unrecorded()),
        content=content,
        client="127.0.0.1",
        upstream="up",
        model=MODEL,
        mode="relay",
        code=CLIENT_LEFT,
        outcome="ok",
        error_code="overloaded",
        n=1,
        choices=1,
        legs=1,
        attempts=1,
        replicas={"r": None},
        finish_reasons={0: "stop"},
        prompt_tokens=0,
        completion_tokens=0,
        queue_seconds=0.0,
        first_token_seconds=0.0,
    )
    request: Any = SimpleNamespace(
        method="GET", content=SimpleNamespace(total_bytes=0), writer=SimpleNamespace(output_size=0)
    )
    exchange = Exchange(request, "r1", record, target="/nowhere", caller=Caller(name="me", bucket="me"))
    assert list(access.fields(exchange)) == list(FIELDS)
    assert all(text.endswith(".") for text in FIELDS.values())


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain-1.2/x", "plain-1.2/x"),
        ("two words", '"two words"'),
        ("a=b", '"a=b"'),
        ('"', '"\\""'),
        ("line\nend", '"line\\nend"'),
        ("", '""'),
        (7, "7"),
        (True, "True"),
        (["a b"], '["a b"]'),
        ({"stop": 3}, '{"stop":3}'),
    ],
)
def test_text_lines_can_be_read_back(value: object, shown: str) -> None:
    record = logging.makeLogRecord({"msg": "m", "levelname": "INFO", "fields": {"key": value}})
    assert logs.TextLines().format(record).endswith(f"m key={shown}")


async def test_it_names_the_failure_that_the_client_is_told_of(upstream: FakeUpstream, lines: Lines) -> None:
    """There might have been another upstream; it has not got the model. One leg is not reached, one is refused."""
    upstream.script(Behaviour(before_head="reset"), Behaviour(status=429))
    lacks = {"name": "lacks", "replicas": [upstream.url], "models": ["another"]}
    one = {"retries": {"per_leg": 0}, "health": {"interval": None}, "fallback": ["lacks"]}
    async with gateway_for({"upstreams": [{**upstream_settings(upstream, **one)}, lacks]}) as gateway:
        assert (await gateway.ask(n=2)).status_code == 429
        await gateway.app.idle()
    assert lines.last["outcome"] == "status"


async def test_an_attempt_that_failed_is_not_the_outcome_of_the_next_one(
    upstream: FakeUpstream, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something that is passed through is answered by the second server that is tried, and the client leaves then."""

    async def leaves(exchange: Exchange, answer: object) -> None:
        raise ClientLeft

    monkeypatch.setattr(handler, "_send_back", leaves)
    replicas = ["http://127.0.0.1:9/v1", upstream.url]
    one = {"name": "up", "replicas": replicas, "retries": {"per_leg": 2}, "health": {"interval": None}}
    async with gateway_for({"upstreams": [one]}) as gateway:
        for _ in range(8):
            with contextlib.suppress(httpx.HTTPError):
                await gateway.post({"input": "x"}, "/v1/embeddings")
    assert len(lines.records) == 8
    assert "connect" not in {fields(record).get("outcome") for record in lines.records}
