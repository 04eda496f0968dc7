"""Metrics on their way from a worker to the parent."""

from __future__ import annotations

import asyncio

import pytest

from nproxy.telemetry.metrics import Metrics
from nproxy.workers.reports import Reported, pack


def metrics(refused: int) -> Metrics:
    one = Metrics(version="1", upstreams=["u"], models=["m"])
    one.refused("queue_full").inc(refused)
    return one


@pytest.mark.parametrize("in_a_thread", [True, False])
async def test_the_last_report_counts(in_a_thread: bool) -> None:
    reported = Reported()
    assert reported.report() == {}
    for refused in (1, 2):
        report = metrics(refused).report()
        packed = await pack(report)
        assert packed is not None
        reported.take(packed)
        if in_a_thread:
            await reported.unpack()
        assert reported.report() == report


async def test_a_report_that_comes_while_another_is_unpacked_is_not_lost() -> None:
    reported = Reported()
    older, newer = await pack(metrics(1).report()), await pack(metrics(2).report())
    assert older is not None
    assert newer is not None
    reported.take(older)
    unpacking = asyncio.create_task(reported.unpack())
    await asyncio.sleep(0)
    reported.take(newer)
    await unpacking
    assert reported.report() == metrics(2).report()


async def test_an_invalid_report_is_empty() -> None:
    reported = Reported()
    reported.take("nonsense")
    await reported.unpack()
    assert reported.report() == {}
