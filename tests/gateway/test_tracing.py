"""Traces: each request is a tree of spans at a real collector, and each upstream is told the span of its call."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import nproxy
from nproxy.telemetry import otlp
from tests.fakes.collector import Collector, Span
from tests.fakes.upstream import MODEL, Behaviour, FakeUpstream, Seen
from tests.gateway.conftest import Gateway, body, gateway_for, upstream_settings
from tests.gateway.raw import leave, open_request
from tests.gateway.traced import PAGE, PARENT, SPAN, TRACE, traced, witnessed


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    async with witnessed() as started:
        yield started


def told(call: Seen) -> str:
    """The span that an upstream was told."""
    version, trace, span, flags = call.headers["traceparent"].split("-")
    assert (version, trace, flags) == ("00", TRACE, "01")
    return span


def otherwise(span: Span, expected: dict[str, Any]) -> dict[str, Any]:
    """What a span says otherwise."""
    return {key: span.attributes.get(key) for key, value in expected.items() if span.attributes.get(key) != value}


# Trees


async def test_a_relay(upstream: FakeUpstream, collector: Collector) -> None:
    async with traced(upstream, collector) as gateway:
        await gateway.stream(headers=PARENT, temperature=0.5, max_tokens=9, seed=7)
    server, (call,) = collector.server, collector.calls
    assert (server.name, server.trace_id, server.parent, server.state) == (
        "POST /v1/chat/completions",
        TRACE,
        SPAN,
        "a=b",
    )
    assert (call.name, call.trace_id, call.parent, call.state) == (f"chat {MODEL}", TRACE, server.id, "a=b")
    (seen,) = upstream.calls
    assert (told(seen), seen.headers["tracestate"]) == (call.id, "a=b")
    told_of_it = {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "url.path": "/v1/chat/completions",
        "client.address": "127.0.0.1",
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": MODEL,
        "gen_ai.request.stream": True,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.seed": 7,
        "gen_ai.response.finish_reasons": ["stop"],
        "nproxy.mode": "relay",
        "nproxy.upstream": "fake",
        "nproxy.legs": 1,
        "nproxy.attempts": 1,
        "nproxy.outcome": "ok",
    }
    assert otherwise(server, told_of_it) == {}
    assert server.attributes["gen_ai.usage.input_tokens"] > 0 < server.attributes["gen_ai.usage.output_tokens"]
    assert 0 < server.attributes["gen_ai.response.time_to_first_chunk"] <= server.seconds
    assert "gen_ai.request.choice.count" not in server.attributes
    assert server.event("nproxy.admitted")["nproxy.choices"] == 1
    assert (
        otherwise(
            call,
            {
                "server.address": "127.0.0.1",
                "server.port": upstream.port,
                "nproxy.replica": upstream.url,
                "nproxy.offset": 0,
                "nproxy.width": 1,
                "nproxy.attempt": 0,
                "nproxy.outcome": "ok",
                "gen_ai.request.seed": 7,
                "gen_ai.response.finish_reasons": ["stop"],
            },
        )
        == {}
    )
    assert call.event("nproxy.sent") == {"nproxy.replica": upstream.url}
    assert not server.failed and not call.failed
    assert server.resource["service.name"] == "nproxy"
    assert server.resource["service.version"] == nproxy.__version__


async def test_native_choices_are_one_call(collector: Collector) -> None:
    async with FakeUpstream(Behaviour(n="native")) as upstream, traced(upstream, collector, n="native") as gateway:
        await gateway.post(body(n=3), headers=PARENT)
    server, (call,) = collector.server, collector.calls
    assert (server.attributes["nproxy.mode"], server.attributes["gen_ai.request.choice.count"]) == ("native", 3)
    assert (call.attributes["nproxy.width"], call.attributes["gen_ai.request.choice.count"]) == (3, 3)
    for span in (server, call):
        assert span.attributes["gen_ai.response.finish_reasons"] == ["stop"] * 3
    assert told(upstream.calls[0]) == call.id


async def test_each_leg_of_a_fan_out_is_a_child(upstream: FakeUpstream, collector: Collector) -> None:
    async with traced(upstream, collector) as gateway:
        await gateway.stream(headers=PARENT, n=3, seed=5)
    server, calls = collector.server, collector.calls
    assert (server.attributes["nproxy.mode"], server.attributes["nproxy.legs"]) == ("fanout", 3)
    assert [call.parent for call in calls] == [server.id] * 3
    assert [call.attributes["nproxy.offset"] for call in calls] == [0, 1, 2]
    assert [call.attributes["gen_ai.request.seed"] for call in calls] == [5, 6, 7]
    assert {told(seen): seen.body["seed"] for seen in upstream.calls} == {
        call.id: call.attributes["gen_ai.request.seed"] for call in calls
    }


async def test_a_call_that_is_made_again_is_another_span(upstream: FakeUpstream, collector: Collector) -> None:
    upstream.script(Behaviour(status=503))
    async with traced(upstream, collector) as gateway:
        assert (await gateway.post(body(), headers=PARENT)).status_code == 200
    server, (first, second) = collector.server, collector.calls
    assert [told(seen) for seen in upstream.calls] == [first.id, second.id]
    assert (first.failed, first.attributes["error.type"], first.attributes["nproxy.outcome"]) == (True, "503", "status")
    assert first.attributes["http.response.status_code"] == 503
    assert (second.failed, second.links, second.attributes["nproxy.attempt"]) == (False, [first.id], 1)
    assert server.event("nproxy.retry") == {"nproxy.leg": 0, "nproxy.reason": "status"}
    assert (server.failed, server.attributes["nproxy.legs"], server.attributes["nproxy.attempts"]) == (False, 1, 2)


async def test_a_stream_that_is_resumed(upstream: FakeUpstream, collector: Collector) -> None:
    upstream.script(Behaviour(end_after=2))
    async with traced(upstream, collector, resume="replay") as gateway:
        assert (await gateway.stream(headers=PARENT)).done
    server, (cut, resumed) = collector.server, collector.calls
    assert (cut.failed, cut.attributes["error.type"]) == (True, "cut")
    assert (resumed.failed, resumed.links) == (False, [cut.id])
    assert server.event("nproxy.resume") == {"nproxy.leg": 0, "nproxy.how": "replay", "nproxy.outcome": "ok"}
    assert not server.failed


async def test_a_client_that_leaves(upstream: FakeUpstream, collector: Collector) -> None:
    upstream.behaviour = Behaviour(hold_after=1)
    async with traced(upstream, collector) as gateway:
        _, writer = await open_request(gateway, body(stream=True, n=2))
        await upstream.until(lambda: len(upstream.calls) == 2)
        await leave(writer, "reset")
        await gateway.app.idle()
        writer.close()
    server, calls = collector.server, collector.calls
    assert server.attributes["nproxy.client_left"] is True
    assert [call.attributes["nproxy.outcome"] for call in calls] == ["cancelled"] * 2
    assert not any(span.failed for span in collector.spans), "nobody's fault"


async def test_an_error(upstream: FakeUpstream, collector: Collector) -> None:
    upstream.behaviour = Behaviour(status=500)
    async with traced(upstream, collector, retries={"per_leg": 0}) as gateway:
        assert (await gateway.post(body(n=2), headers=PARENT)).status_code == 500
    server = collector.server
    assert (server.failed, server.attributes["error.type"]) == (True, "500")
    assert {call.attributes["nproxy.outcome"] for call in collector.calls} <= {"status", "cancelled"}


async def test_a_stream_that_breaks_off(upstream: FakeUpstream, collector: Collector) -> None:
    upstream.behaviour = Behaviour(end_after=2)
    async with traced(upstream, collector, retries={"per_leg": 0}) as gateway:
        await gateway.stream(headers=PARENT)
    server = collector.server
    assert (server.attributes["http.response.status_code"], server.attributes["error.type"]) == (200, "cut")


async def test_what_is_the_clients_fault_is_no_error(upstream: FakeUpstream, collector: Collector) -> None:
    async with traced(upstream, collector) as gateway:
        for target, content in (("/v1/chat/completions", b"{"), ("/nowhere?key=canary", b"")):
            await gateway.post(content, target, headers=PARENT)
    names = {span.name: span.attributes["http.response.status_code"] for span in collector.spans}
    assert names == {"POST /v1/chat/completions": 400, "POST other": 404}
    assert not any(span.failed for span in collector.spans)
    assert {span.attributes["url.path"] for span in collector.spans} == {"/v1/chat/completions", "/nowhere"}


async def test_a_path_of_somebody_without_a_key_is_not_told(upstream: FakeUpstream, collector: Collector) -> None:
    """It may be a key."""
    config = {"telemetry": {"otlp_endpoint": collector.url}, "auth": {"api_key": "right"}}
    async with gateway_for({"upstreams": [upstream_settings(upstream)], **config}) as gateway:
        for key, target in (("wrong", "/v1/sk-canary"), ("right", "/v1/files"), ("wrong", "/v1/chat/completions")):
            await gateway.post(b"{}", target, headers={"authorization": f"Bearer {key}"})
    paths = {span.attributes.get("url.path") for span in collector.spans}
    assert paths >= {"/v1/files", "/v1/chat/completions"}
    assert "canary" not in str(collector.spans)


async def test_words_of_clients_that_are_no_text(upstream: FakeUpstream, collector: Collector) -> None:
    async with traced(upstream, collector) as gateway:
        reader, writer = await asyncio.open_connection(*gateway.address)
        writer.write(b"GET /nowhere HTTP/1.1\r\nHost: h\r\nUser-Agent: \xfe\r\nConnection: close\r\n\r\n")
        assert b" 404 " in await reader.readline()
        writer.close()
    told_of_it = collector.server.attributes
    assert (told_of_it["url.path"], told_of_it["user_agent.original"]) == ("/nowhere", "?")


async def test_another_upstream(upstream: FakeUpstream, collector: Collector) -> None:
    upstream.behaviour = Behaviour(status=503)
    async with FakeUpstream() as other:
        first = upstream_settings(upstream, fallback=["other"], retries={"per_leg": 0})
        second = {"name": "other", "replicas": [other.url], "n": "fanout"}
        config = {"upstreams": [first, second], "telemetry": {"otlp_endpoint": collector.url}}
        async with gateway_for(config) as gateway:
            assert (await gateway.post(body(n=2), headers=PARENT)).status_code == 200
    upstreams = Counter(call.attributes["nproxy.upstream"] for call in collector.calls)
    assert upstreams == {"fake": 2, "other": 2}
    assert collector.server.attributes["nproxy.upstream"] == "other"
    assert len({call.id for call in collector.calls}) == 4
    assert [call.links for call in collector.calls] == [[]] * 4, "none is made again"


async def test_over_a_unix_socket(collector: Collector, tmp_path: Path) -> None:
    """As the built-in engine is called."""
    async with FakeUpstream(unix=str(tmp_path / "s")) as upstream, traced(upstream, collector) as gateway:
        await gateway.post(body(n=2), headers=PARENT)
    assert sorted(map(told, upstream.calls)) == sorted(call.id for call in collector.calls)
    for call in collector.calls:
        assert call.attributes["server.address"] == str(tmp_path / "s")
        assert call.attributes["network.transport"] == "unix" and "server.port" not in call.attributes


async def test_content_only_where_it_is_asked_for(upstream: FakeUpstream, collector: Collector) -> None:
    upstream.behaviour = Behaviour(pieces=lambda seed: ["hel", "lo"])
    async with traced(upstream, collector, {"log_content": True}) as gateway:
        await gateway.ask(messages=[{"role": "user", "content": "hi"}])
    told_of_it = {
        name: json.loads(collector.server.attributes[f"gen_ai.{name}.messages"]) for name in ("input", "output")
    }
    assert [message["parts"][0]["content"] for (message,) in told_of_it.values()] == ["hi", "hello"]
    assert "hello" not in str(collector.calls)


async def test_what_passes_through(upstream: FakeUpstream, collector: Collector) -> None:
    async with traced(upstream, collector) as gateway:
        await gateway.post({"model": MODEL, "input": "x"}, "/v1/embeddings?key=canary", headers=PARENT)
    server, (call,) = collector.server, collector.calls
    assert server.name == "POST passthrough" and server.attributes["url.path"] == "/v1/embeddings"
    assert (call.name, call.parent, call.attributes["nproxy.replica"]) == ("POST", server.id, upstream.url)
    assert told(next(seen for seen in upstream.requests if seen.path == "/v1/embeddings")) == call.id


async def test_what_passes_through_in_vain(collector: Collector) -> None:
    async with FakeUpstream() as upstream:
        pass
    async with traced(upstream, collector) as gateway:
        answer = await gateway.post({"model": MODEL, "input": "x"}, "/v1/embeddings", headers=PARENT)
    assert answer.status_code == 502
    assert {call.attributes["error.type"] for call in collector.calls} == {"connect"}
    assert len(collector.calls) == collector.server.attributes["nproxy.attempts"] == 2
    assert collector.calls[1].links == [collector.calls[0].id]


def test_the_page_names_nothing_else() -> None:
    rooms = (Path(nproxy.__file__).parent / "gateway" / name for name in ("spans.py", "access.py", "tracing.py"))
    code = "".join(room.read_text() for room in rooms) + Path(otlp.__file__).read_text()
    named = {name for name in PAGE if name.split(".")[0] not in ("telemetry", "service")}
    assert [name for name in sorted(named) if f'"{name}"' not in code] == []


# Who is traced


async def test_a_new_trace(upstream: FakeUpstream, collector: Collector) -> None:
    async with traced(upstream, collector) as gateway:
        await gateway.ask()
        await gateway.post(body(), headers={"traceparent": f"00-{TRACE}-{SPAN}-01-x", "tracestate": "a=b"})
    servers = [span for span in collector.spans if span.kind == "SERVER"]
    assert [span.parent for span in servers] == ["", ""]
    assert len({span.trace_id for span in servers} | {TRACE}) == 3, "the malformed one began anew"
    for seen in upstream.calls:
        trace, flags = seen.headers["traceparent"].split("-")[1::2]
        assert trace in {span.trace_id for span in servers} and flags == "03"
        assert "tracestate" not in seen.headers


async def test_a_share_of_new_traces(upstream: FakeUpstream, collector: Collector) -> None:
    async with traced(upstream, collector, {"trace_ratio": 0}) as gateway:
        await gateway.ask(n=2)
        await gateway.post(body(), headers=PARENT)
    assert collector.server.trace_id == TRACE, "who calls has decided for itself"
    alone, sibling, known = upstream.calls
    assert alone.headers["traceparent"] == sibling.headers["traceparent"]
    assert alone.headers["traceparent"].endswith("-02") and TRACE in known.headers["traceparent"]


async def test_a_caller_that_is_not_traced(upstream: FakeUpstream, collector: Collector) -> None:
    parent = f"00-{TRACE}-{SPAN}-00"
    async with traced(upstream, collector) as gateway:
        await gateway.post(body(n=2), headers={"traceparent": parent})
    assert [seen.headers["traceparent"] for seen in upstream.calls] == [parent] * 2
    assert collector.spans == []


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings"])
async def test_without_a_collector_what_came_goes_on(gateway: Gateway, upstream: FakeUpstream, path: str) -> None:
    later = {"traceparent": f"cc-{TRACE}-{SPAN}-09-more", "tracestate": "a=b, c=d"}
    await gateway.post(body(path="/v1/chat/completions"), path, headers=later)
    await gateway.post(body(path="/v1/chat/completions"), path, headers={**later, "traceparent": f"00-{TRACE}-01"})
    await gateway.post(body(path="/v1/chat/completions"), path, headers={**later, "tracestate": "A=b"})
    await gateway.post(body(path="/v1/chat/completions"), path)
    good, malformed, stateless, none = (seen for seen in upstream.requests if seen.path == path)
    assert {name: good.headers[name] for name in later} == later
    assert "traceparent" not in malformed.headers and "tracestate" not in malformed.headers
    assert stateless.headers["traceparent"] == later["traceparent"] and "tracestate" not in stateless.headers
    assert "traceparent" not in none.headers


async def test_probes_and_scrapes_are_not_traced(upstream: FakeUpstream, collector: Collector) -> None:
    async with traced(upstream, collector) as gateway:
        for path in ("/health", "/ready", "/metrics", "/status"):
            assert (await gateway.client.get(path, headers=PARENT)).status_code == 200
    assert collector.spans == []


async def test_a_long_name_of_a_model_is_cut(upstream: FakeUpstream, collector: Collector) -> None:
    """Spans wait in memory, which no limit of requests counts."""
    model = "long-" + "x" * 4000
    async with traced(upstream, collector) as gateway:
        assert (await gateway.post(body(model=model))).status_code == 200
    (call,) = collector.calls
    assert call.name == f"chat {model[:256]}"
    for span in collector.spans:
        assert span.attributes["gen_ai.request.model"] == model[:256]


# What it costs


async def test_no_chunk_costs_more(
    upstream: FakeUpstream, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    """Counted, not timed: what runs for spans and for the log runs as often for few chunks as for many.

    Where neither is wanted, it is asked whether they are, and that is all.
    """
    caplog.set_level(logging.WARNING, logger="nproxy.access")
    async with (
        traced(upstream, collector) as tracing,
        gateway_for({"upstreams": [upstream_settings(upstream)]}) as plain,
    ):
        for gateway, recorded in ((plain, False), (tracing, True)):
            few, many = [await calls(gateway, upstream, chunks) for chunks in (2, 200)]
            assert few == many
            assert ("spans.py" in {file for file, _ in few}) == recorded
            if not recorded:
                assert few == dict.fromkeys(NOTHING_WANTED, 1)


NOTHING_WANTED = [
    ("tracing.py", "begin"),
    ("tracing.py", "headers"),
    ("access.py", "log_request"),
]


async def calls(gateway: Gateway, upstream: FakeUpstream, chunks: int) -> Counter[tuple[str, str]]:
    """The functions of tracing and of the log that run for one stream, and how often."""
    ours = ("spans.py", "tracing.py", "access.py", "content.py", "keeping.py", "otlp.py", "trace_context.py")
    files = {str(Path(nproxy.__file__).parent / room / name) for room in ("gateway", "telemetry") for name in ours}
    seen: Counter[tuple[str, str]] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename in files:
            seen[Path(frame.f_code.co_filename).name, frame.f_code.co_name] += 1

    upstream.behaviour = Behaviour(pieces=lambda _: ["x"] * chunks)
    sys.setprofile(note)
    try:
        assert (await gateway.stream()).done
        await gateway.app.idle()
    finally:
        sys.setprofile(None)
    return seen
