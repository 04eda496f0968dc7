"""Collectors of traces: what they are sent, and what becomes of it where they hang, refuse or are gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from nproxy.telemetry import otlp, otlp_batches
from tests.fakes.collector import Collector
from tests.fakes.upstream import FakeUpstream
from tests.gateway.conftest import body
from tests.gateway.traced import PARENT, traced, witnessed


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    async with witnessed() as started:
        yield started


async def test_where_and_as_what_spans_are_sent(
    upstream: FakeUpstream, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "gateway-7")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-from=environment")
    async with traced(upstream, collector) as gateway:
        await gateway.ask()
    async with traced(upstream, collector, {"otlp_headers": {"authorization": "Bearer t"}}) as gateway:
        await gateway.ask()
    assert collector.targets == ["POST /v1/traces"] * 2
    assert collector.headers[0]["x-from"] == "environment"
    assert collector.headers[1]["authorization"] == "Bearer t"
    resource = collector.spans[0].resource
    assert (resource["service.name"], resource["deployment.environment.name"]) == ("gateway-7", "test")
    assert resource["service.instance.id"]


async def test_a_disabled_sdk(upstream: FakeUpstream, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    async with traced(upstream, collector) as gateway:
        await gateway.post(body(), headers=PARENT)
    assert collector.spans == []
    assert upstream.calls[0].headers["traceparent"] == PARENT["traceparent"]


async def test_a_collector_that_hangs_holds_nobody_up(
    upstream: FakeUpstream, collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    collector.hold = asyncio.Event()
    monkeypatch.setattr(otlp_batches, "MOST_WAITING", 8)
    monkeypatch.setattr(otlp_batches, "MOST_AT_ONCE", 4)
    monkeypatch.setattr(otlp, "CLOSE_SECONDS", 0.2)
    async with traced(upstream, collector) as gateway:
        await gateway.ask()
        await gateway.ask()
        await collector.asked.wait()
        answers = [await gateway.ask() for _ in range(6)]
        dropped = await gateway.metric('nproxy_spans_total{outcome="dropped"}')
    collector.hold.set()
    assert [answer.status_code for answer in answers] == [200] * 6
    assert dropped == 2 * 8 - 4 - 8, "4 are being sent, 8 wait"
    assert "the last spans were not sent in time" in caplog.messages


@pytest.mark.parametrize("status", [302, 308, 400, 401, 500])
async def test_a_collector_that_refuses_is_told_of_once_and_why(
    upstream: FakeUpstream,
    collector: Collector,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    status: int,
) -> None:
    """One that sends them elsewhere, too: nothing follows it there, and to the SDK that is a success."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    async with traced(upstream, collector) as gateway:
        for outcome, spans in (("failed", 2), ("failed", 4), ("exported", 2)):
            collector.status = 200 if outcome == "exported" else status
            assert (await gateway.ask()).status_code == 200
            while await gateway.metric(f'nproxy_spans_total{{outcome="{outcome}"}}') < spans:
                await asyncio.sleep(0.01)
    assert told_of_it(caplog) == [
        ("the collector does not accept spans", {"why": str(status)}),
        ("the collector accepts spans again", None),
    ]


async def test_spans_that_a_collector_rejects_are_not_exported(
    upstream: FakeUpstream, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    collector.rejects = 1
    async with traced(upstream, collector) as gateway:
        await gateway.ask()
    counted = {outcome: gateway.app.metrics.spans(outcome)._value.get() for outcome in ("exported", "failed")}
    assert counted == {"exported": 1, "failed": 1}
    assert told_of_it(caplog) == [("the collector does not accept spans", {"why": "some were rejected"})]


async def test_a_collector_that_is_not_there(
    upstream: FakeUpstream, collector: Collector, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    await collector.__aexit__()
    async with traced(upstream, collector) as gateway:
        await gateway.ask()
    assert told_of_it(caplog) == [("the collector does not accept spans", {"why": "ConnectionError"})]


def told_of_it(caplog: pytest.LogCaptureFixture) -> list[tuple[str, Any]]:
    """The log's lines on traces, and their fields."""
    records = [record for record in caplog.records if record.name == "nproxy.traces"]
    return [(record.getMessage(), vars(record).get("fields")) for record in records]
