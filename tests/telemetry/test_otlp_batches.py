"""Spans in batches: how many wait, and how long an export may be, where prompts and answers are in them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry, Counter

from nproxy.telemetry import otlp_batches
from nproxy.telemetry.otlp import OtlpTracer
from tests.fakes.collector import Collector


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    async with Collector() as started:
        yield started


def counted(counter: Counter) -> dict[str, float]:
    samples = [sample for family in counter.collect() for sample in family.samples if sample.name == "spans_total"]
    return {sample.labels["outcome"]: sample.value for sample in samples if sample.value}


async def test_long_spans_wait_in_small_numbers(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts and answers are asked for, but not to fill the memory where a collector takes nothing."""
    monkeypatch.setattr(otlp_batches, "MOST_WAITING_BYTES", 200_000)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1000")  # until when nothing is taken
    collector.hold = asyncio.Event()
    counter = Counter("spans", "", ["outcome"], registry=CollectorRegistry())
    tracer = OtlpTracer(collector.url, None, "1", counter.labels)
    for _ in range(10):
        tracer.begin("long", "server", None, {"gen_ai.input.messages": "x" * 50_000}).end()
    assert counted(counter) == {"dropped": 7}, "three are as long as four may be"
    collector.hold.set()
    while counted(counter).get("exported") != 3:
        await asyncio.sleep(0.01)
    tracer.begin("long", "server", None, {"gen_ai.input.messages": "x" * 50_000}).end()
    await tracer.close()
    assert counted(counter) == {"dropped": 7, "exported": 4}, "who is gone makes room"


async def test_no_batch_is_longer_than_collectors_take(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp_batches, "MOST_BYTES_AT_ONCE", 120_000)
    counter = Counter("spans", "", ["outcome"], registry=CollectorRegistry())
    tracer = OtlpTracer(collector.url, None, "1", counter.labels)
    for length in (50_000, 50_000, 50_000, 200_000, 10, 10):
        tracer.begin("long", "server", None, {"gen_ai.input.messages": "x" * length}).end()
    await tracer.close()
    assert [len(body) > 120_000 for body in collector.raw] == [False, False, True, False]
    assert [len(span.attributes["gen_ai.input.messages"]) for span in collector.spans] == [
        50_000, 50_000, 50_000, 200_000, 10, 10,
    ]  # fmt: skip
    assert counted(counter) == {"exported": 6}
