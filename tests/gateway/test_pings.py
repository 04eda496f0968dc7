"""Pings between two upstreams, to the client of a stream that has begun."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from nproxy.gateway.exchange import Exchange
from nproxy.gateway.pings import pinged
from nproxy.openai.wire import PING


class Begun:
    """Of an exchange what is asked here: an answer that has begun, or not."""

    def __init__(self, *, begun: bool = True) -> None:
        self.response = object() if begun else None
        self.only_pinged = False
        self.written: list[bytes] = []

    def write_now(self, data: bytes) -> bool:
        self.written.append(data)
        return True


def exchange(stub: Begun) -> Exchange:
    return cast(Exchange, stub)


async def test_it_is_pinged_at_once_and_again_and_never_after_the_block() -> None:
    stub = Begun()
    async with pinged(exchange(stub), 0.02):
        assert stub.only_pinged
        await asyncio.sleep(0.1)
    pings = len(stub.written)
    assert pings >= 3 and set(stub.written) == {PING} and not stub.only_pinged
    await asyncio.sleep(0.1)
    assert len(stub.written) == pings


async def test_who_need_not_wait_is_not_pinged() -> None:
    stub = Begun()
    async with pinged(exchange(stub), 0.02):
        pass
    await asyncio.sleep(0.05)
    assert not stub.written and not stub.only_pinged


@pytest.mark.parametrize("seconds", [0.02, None])
async def test_after_an_exception_it_may_end_with_an_event(seconds: float | None) -> None:
    stub = Begun()
    with pytest.raises(TimeoutError):
        async with pinged(exchange(stub), seconds):
            await asyncio.sleep(0.05)
            raise TimeoutError
    pings = len(stub.written)
    await asyncio.sleep(0.05)
    assert stub.only_pinged and len(stub.written) == pings and bool(pings) == (seconds is not None)


async def test_an_answer_that_has_not_begun_stays_so() -> None:
    stub = Begun(begun=False)
    async with pinged(exchange(stub), 0.02):
        await asyncio.sleep(0.05)
        assert not stub.only_pinged
    assert not stub.written
