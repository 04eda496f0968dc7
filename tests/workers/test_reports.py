"""Metrics on their way from a worker to the parent."""

from __future__ import annotations

import asyncio

import pytest

from nproxy.telemetry.metrics import Metrics
from nproxy.telemetry.sums import Report, packed
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
        text = await pack(made(refused))
        assert text is not None
        reported.take(text)
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


async def calls(**ended: int) -> Report:
    """A report of a process that has counted so many calls at each replica."""
    one = Metrics(version="1", upstreams=["u"], models=["m"])
    one.replica_calls.values = {("u", replica, "ok"): count for replica, count in ended.items()}
    return one.report()


@pytest.mark.parametrize("in_a_thread", [True, False])
async def test_what_is_counted_of_a_replica_goes_on_if_it_leaves_and_returns(in_a_thread: bool) -> None:
    """In its process it is a new one, which counts from 0; the sum over several processes must not go back a little."""
    reported, told = Reported(), []
    for ended in ({"a": 5}, {"a": 2, "b": 7}, None, {"a": 3, "b": 0}, {"b": 1}, {"a": 1, "b": 2}):
        reported.take("nonsense" if ended is None else await pack(calls(**ended)) or "")
        if in_a_thread:
            await reported.unpack()
        samples = reported.report().get("nproxy_replica_calls")
        told.append(None if samples is None else {dict(key)["replica"]: n for (_, key), n in samples.samples.items()})
    assert told == [
        {"a": 5},
        {"a": 7, "b": 7},
        None,
        {"a": 8, "b": 7},
        {"b": 8},
        {"a": 1, "b": 9},
    ], "one that is seen to be gone is forgotten"


async def test_what_stays_as_it_is_counts_once_and_a_gauge_may_fall() -> None:
    reported = Reported()
    for inflight, calls_of_a in ((5, 1), (2, 1), (3, 1), (0, 0)):
        one = Metrics(version="1", upstreams=["u"], models=["m"])
        one.inflight_requests.set(inflight)
        one.replica_calls.values = {("u", "a", "ok"): calls_of_a, ("u", "a", "status"): 4}
        reported.take(packed(one.report()))
        told = reported.report()
        assert list(told["nproxy_inflight_requests"].samples.values()) == [inflight]
        counts = {dict(labels)["outcome"]: count for (_, labels), count in told["nproxy_replica_calls"].samples.items()}
        assert counts == {"ok": 1, "status": 4}


async def test_a_single_call_is_kept_too() -> None:
    """Of an outcome that the replica has not had again since it returned."""
    reported = Reported()
    calls: list[dict[tuple[str, ...], float]] = [{("u", "a", "ok"): 2, ("u", "a", "status"): 1}, {("u", "a", "ok"): 0}]
    for ended in calls:
        one = Metrics(version="1", upstreams=["u"], models=["m"])
        one.replica_calls.values = ended
        reported.take(packed(one.report()))
        told = reported.report()["nproxy_replica_calls"].samples
    assert {dict(labels)["outcome"]: count for (_, labels), count in told.items()} == {"ok": 2, "status": 1}


async def test_an_invalid_report_is_empty_and_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    reported = Reported()
    reported.take("nonsense")
    await reported.unpack()
    assert caplog.messages == ["a worker's report is invalid"]
    await reported.unpack()
    assert reported.report() == {}
    assert len(caplog.records) == 1, "it was read once, in a thread"
