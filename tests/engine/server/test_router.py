"""An inbox holds what one request has still to take, and no more than that."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from engine.channel import CoreClient
from engine.messages import Abort, Add, Embed, TokenDrawn
from engine.server.metrics import Metrics
from engine.server.router import FULL, Inbox, Router
from nproxy.openai.errors import ApiError, invalid_request
from tests.fakes.runner import ready

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


class Recorder:
    """The core's end of a router, which keeps what it is told and never answers."""

    ready = ready()

    def __init__(self) -> None:
        self.added: list[Add | Embed] = []
        self.aborted: list[int] = []

    def add(self, message: Add | Embed) -> None:
        self.added.append(message)

    def abort(self, message: Abort) -> None:
        self.aborted.append(message.group)


async def test_embeddings_that_nobody_waits_for_are_aborted() -> None:
    core = Recorder()
    router = Router(cast(CoreClient, core), Metrics(core.ready))
    asking = asyncio.create_task(router.embed([Embed(0, (1,), "last")] * 100))
    await asyncio.sleep(0)
    groups = [message.group for message in core.added]
    assert len(set(groups)) == len(groups) == 64  # the others wait, so that one request does not fill the queue
    assert not router.idle
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert core.aborted == groups
    assert router.idle


async def test_embeddings_end_with_the_router() -> None:
    core = Recorder()
    router = Router(cast(CoreClient, core), Metrics(core.ready))
    asking = asyncio.create_task(router.embed([Embed(0, (1,), "last")] * 2))
    await asyncio.sleep(0)
    router.end(invalid_request("It is over."))
    with pytest.raises(ApiError, match="over"):
        await asking
    with pytest.raises(ApiError, match="over"):
        await router.embed([Embed(0, (1,), "last")])
