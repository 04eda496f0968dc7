"""What the log says of requests that the end of the gateway ended."""

from __future__ import annotations

import asyncio
import logging

import pytest

from nproxy.gateway.serve import drain
from tests.fakes.upstream import Behaviour, FakeUpstream
from tests.gateway.conftest import Gateway
from tests.gateway.raw import post


async def test_whatever_they_waited_for(
    gateway: Gateway, upstream: FakeUpstream, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "nproxy.access")
    upstream.behaviour = Behaviour(hold_after=2)
    streamed = asyncio.create_task(gateway.stream())
    await upstream.until(lambda: len(upstream.open_calls) == 1)
    upstream.behaviour = Behaviour(hold=asyncio.Event())
    whole = asyncio.create_task(gateway.ask())
    await upstream.until(lambda: len(upstream.open_calls) == 2)
    reader, writer = await asyncio.open_connection(*gateway.address)
    writer.write(post(b'{"model": ', "Content-Length: 1000"))
    while gateway.app.inflight < 3:
        await asyncio.sleep(0.01)
    await drain(gateway.app, 0.1)
    await asyncio.gather(streamed, whole, reader.readline())
    writer.close()
    lines = [vars(record)["fields"] for record in caplog.records if record.name == "nproxy.access"]
    assert sorted((line["status"], line["outcome"]) for line in lines) == [
        (200, "ended"),
        (503, "ended"),
        (503, "ended"),
    ]
