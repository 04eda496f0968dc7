"""The log says when the gateway begins to refuse requests because it is full, and when that has ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest

from nproxy.gateway.admission.refusal_log import RefusalLog
from nproxy.gateway.callers import Caller, Rates
from nproxy.openai.errors import ApiError
from tests.gateway.admission.scene import ANN, Begin, held, refusal
from tests.waiting import until

Lines = Callable[[], list[tuple[str, str, dict[str, object]]]]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    """Return what was logged: level, message and fields of each line."""
    caplog.set_level(logging.INFO, logger="nproxy.gateway")
    return lambda: [(one.levelname, one.getMessage(), one.__dict__["fields"]) for one in caplog.records]


async def test_one_line_at_the_begin_and_one_at_the_end(lines: Lines) -> None:
    log = RefusalLog(asyncio.get_running_loop(), quiet=0.2)
    for _ in range(3):
        log.note("queue_full")
        await asyncio.sleep(0.1)
    assert lines() == [("WARNING", "requests are refused", {"why": "queue_full"})]
    await until(lambda: len(lines()) == 2)
    level, message, fields = lines()[1]
    assert (level, message) == ("INFO", "no requests are refused any more")
    assert (fields["why"], fields["refused"]) == ("queue_full", 3)
    assert isinstance(fields["seconds"], float)
    assert fields["seconds"] >= 0.2
    log.note("queue_full")
    await until(lambda: len(lines()) == 3)
    assert lines()[2] == lines()[0], "the next time begins anew"


async def test_each_reason_has_lines_of_its_own(lines: Lines) -> None:
    log = RefusalLog(asyncio.get_running_loop())
    for reason in ("memory", "timeout", "memory"):
        await asyncio.to_thread(log.note, reason)
    await until(lambda: len(lines()) == 2)
    assert [fields for _, _, fields in lines()] == [{"why": "memory"}, {"why": "timeout"}]


async def test_the_client_says_that_it_is_full(begin: Begin, lines: Lines) -> None:
    scene = begin(inflight_choices=2, queue_seconds=0.05)
    async with held(scene, 2):
        await refusal(scene)
        await refusal(scene)
    await scene.settled()
    assert [fields for _, _, fields in lines()] == [{"why": "timeout"}]


async def test_the_client_says_that_it_is_short_of_memory(begin: Begin, lines: Lines) -> None:
    scene = begin(memory_mib=1)
    with pytest.raises(ApiError), scene.client.guard(ANN):
        pass
    await scene.settled()
    assert [fields for _, _, fields in lines()] == [{"why": "memory"}]


async def test_what_lies_with_the_client_is_not_logged(begin: Begin, lines: Lines) -> None:
    scene = begin(inflight_choices=2)
    await refusal(scene, 3)
    limited = Caller("c", "c", rates=Rates(1, None, None))
    async with held(scene, 1, limited):
        assert (await refusal(scene, 1, limited)).code == "rate_limit_exceeded"
    await scene.settled()
    assert lines() == []
