"""What spans say of a request and of its calls, and what they leave out because there is nothing to say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.fakes.collector import Collector
from tests.fakes.upstream import MODEL, Behaviour, FakeUpstream
from tests.gateway.conftest import Gateway, body, gateway_for, upstream_settings
from tests.gateway.raw import leave, open_request


@asynccontextmanager
async def traced(upstream: FakeUpstream, collector: Collector, **settings: Any) -> AsyncIterator[Gateway]:
    """A gateway that exports; when the block is left, it has."""
    config = {"upstreams": [upstream_settings(upstream, **settings)], "telemetry": {"otlp_endpoint": collector.url}}
    async with gateway_for(config) as gateway:
        yield gateway


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    async with Collector() as collector:
        yield collector


async def test_one_choice_without_a_seed(upstream: FakeUpstream, collector: Collector) -> None:
    async with traced(upstream, collector) as gateway:
        await gateway.stream()
    server, (call,) = collector.server, collector.calls
    for span in (server, call):
        assert span.attributes.keys().isdisjoint({"gen_ai.request.seed", "gen_ai.request.choice.count"})
    assert server.attributes.keys().isdisjoint({"gen_ai.output.type", "nproxy.caller", "nproxy.client_left"})
    assert 0 < call.attributes["gen_ai.response.time_to_first_chunk"] <= call.seconds


async def test_two_choices_of_one_call(collector: Collector) -> None:
    async with FakeUpstream(Behaviour(n="native")) as upstream, traced(upstream, collector, n="native") as gateway:
        await gateway.post(body(n=2))
    assert [span.attributes["gen_ai.request.choice.count"] for span in collector.spans] == [2, 2]
    assert collector.server.event("nproxy.admitted")["nproxy.choices"] == 2


async def test_json_is_asked_for(upstream: FakeUpstream, collector: Collector) -> None:
    async with traced(upstream, collector) as gateway:
        for form in ("text", "json_object"):
            await gateway.post(body(response_format={"type": form}))
    asked = [span.attributes.get("gen_ai.output.type") for span in collector.spans if span.kind == "SERVER"]
    assert asked == [None, "json"]


async def test_a_call_says_how_its_own_choices_ended(upstream: FakeUpstream, collector: Collector) -> None:
    async with traced(upstream, collector, prompts="list") as gateway:
        await gateway.post({"model": MODEL, "prompt": ["a", "b"], "n": 3}, "/v1/completions")
    assert [call.attributes["gen_ai.response.finish_reasons"] for call in collector.calls] == [["stop"] * 2] * 3


async def test_of_more_choices_than_are_shown_no_call_says_how_they_ended(
    upstream: FakeUpstream, collector: Collector
) -> None:
    async with traced(upstream, collector) as gateway:
        assert (await gateway.post(body(best_of=3))).status_code == 200
    assert collector.server.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert len(collector.calls) == 3
    assert not any("gen_ai.response.finish_reasons" in call.attributes for call in collector.calls)


@pytest.mark.parametrize("value", [2**70, True, "40"])
async def test_what_is_no_number_of_a_span_is_left_out(
    upstream: FakeUpstream, collector: Collector, value: object
) -> None:
    async with traced(upstream, collector) as gateway:
        assert (await gateway.post(body(top_k=value))).status_code == 200
    assert "gen_ai.request.top_k" not in collector.server.attributes


async def test_a_call_that_is_refused_has_failed_and_the_request_has_not(
    upstream: FakeUpstream, collector: Collector
) -> None:
    upstream.behaviour = Behaviour(status=400, body=b"{}")
    async with traced(upstream, collector) as gateway:
        assert (await gateway.post(body())).status_code == 400
    server, (call,) = collector.server, collector.calls
    assert (call.attributes["http.response.status_code"], call.attributes["error.type"]) == (400, "400")
    assert call.failed and not server.failed


async def test_what_passes_through_has_the_status_of_its_answer_and_no_outcome(
    upstream: FakeUpstream, collector: Collector
) -> None:
    async with traced(upstream, collector) as gateway:
        assert (await gateway.post({"model": MODEL}, "/v1/rerank")).status_code == 200
    server, (call,) = collector.server, collector.calls
    assert call.attributes["http.response.status_code"] == 200 and not call.failed
    assert server.event("nproxy.admitted")["nproxy.choices"] == 1
    assert call.attributes.keys().isdisjoint({"nproxy.outcome", "gen_ai.response.finish_reasons"}), "it came whole"
    assert server.attributes.keys().isdisjoint({"http.route", "nproxy.legs", "gen_ai.response.finish_reasons"})


async def test_a_client_that_leaves_before_the_head(upstream: FakeUpstream, collector: Collector) -> None:
    upstream.behaviour = Behaviour(hold=asyncio.Event())
    async with traced(upstream, collector) as gateway:
        _, writer = await open_request(gateway, body())
        await upstream.until(lambda: bool(upstream.calls))
        await leave(writer, "reset")
        await gateway.app.idle()
        writer.close()
    server = collector.server
    assert server.attributes["nproxy.client_left"] is True and "http.response.status_code" not in server.attributes


async def test_what_nobody_serves_calls_nobody(upstream: FakeUpstream, collector: Collector) -> None:
    async with traced(upstream, collector) as gateway:
        await gateway.post(b"{")
    assert "nproxy.attempts" not in collector.server.attributes and collector.calls == []
