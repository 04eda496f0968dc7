"""An inbox holds what one request has still to take, and no more than that."""

from __future__ import annotations

import asyncio

import pytest

from engine.messages import TokenDrawn
from engine.server.router import FULL, Inbox
from nproxy.openai.errors import ApiError, invalid_request

TOKEN = TokenDrawn(1, 0, 5)


async def test_all_that_is_there_is_taken_at_once() -> None:
    inbox = Inbox()
    inbox.put([TOKEN])
    inbox.put([TOKEN, TOKEN])
    assert await inbox.take() == [TOKEN] * 3


async def test_taking_waits_for_the_next() -> None:
    inbox = Inbox()
    async with asyncio.TaskGroup() as group:
        taking = group.create_task(inbox.take())
        await asyncio.sleep(0)
        assert not taking.done()
        inbox.put([TOKEN])
    assert taking.result() == [TOKEN]


async def test_an_error_comes_behind_the_tokens_and_stays() -> None:
    inbox = Inbox()
    inbox.put([TOKEN])
    inbox.fail(invalid_request("first"))
    inbox.fail(invalid_request("second"))
    assert await inbox.take() == [TOKEN]
    for _ in range(2):
        with pytest.raises(ApiError, match="first"):
            await inbox.take()


async def test_M1_a_full_inbox_ends_its_request_and_holds_nothing() -> None:
    inbox = Inbox()
    for _ in range(FULL):
        inbox.put([TOKEN])
    inbox.put([TOKEN])
    for _ in range(2):
        with pytest.raises(ApiError) as ended:
            await inbox.take()
        assert (ended.value.status, ended.value.code) == (408, "slow_reader")
        inbox.put([TOKEN])
