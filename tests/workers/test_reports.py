"""Metrics on their way from a worker to the parent."""

from __future__ import annotations

import asyncio

import pytest

from nproxy.telemetry.metrics import Metrics
from nproxy.telemetry.sums import Report
from nproxy.workers.reports import Reported, pack


async def made(refused: int) -> Report:
    one = Metrics(version="1", upstreams=["u"], models=["m"])
    one.refused("queue_full").inc(refused)
    return one.report()


@pytest.mark.parametrize("in_a_thread", [True, False])
async def test_the_last_report_counts(in_a_thread: bool) -> None:
    reported = Reported()
    assert reported.report() == {}
    for refused in (1, 2):
        packed = await pack(made(refused))
        assert packed is not None
        reported.take(packed)
        if in_a_thread:
            await reported.unpack()
        assert reported.report() == await made(refused)


async def test_a_report_that_comes_while_another_is_unpacked_is_not_lost() -> None:
    reported = Reported()
    older, newer = await pack(made(1)), await pack(made(2))
    assert older is not None
    assert newer is not None
    reported.take(older)
    unpacking = asyncio.create_task(reported.unpack())
    await asyncio.sleep(0)
    reported.take(newer)
    await unpacking
    assert reported.report() == await made(2)


async def test_an_invalid_report_is_empty() -> None:
    reported = Reported()
    reported.take("nonsense")
    await reported.unpack()
    assert reported.report() == {}
