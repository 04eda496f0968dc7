"""A client may be as slow as it likes, as long as it takes something."""

from __future__ import annotations

import asyncio

from tests.fakes.upstream import Behaviour, FakeUpstream
from tests.gateway.conftest import Start, body
from tests.gateway.raw import open_request

LIMIT = 2.0
PIECE = 1 << 20


async def test_a_reader_that_takes_a_little_now_and_then_is_not_left(start: Start, upstream: FakeUpstream) -> None:
    gateway = await start(config={"limits": {"write_seconds": LIMIT}})
    pieces = 24
    upstream.behaviour = Behaviour(pieces=lambda seed: ["x" * pieces * PIECE])
    reader, writer = await open_request(gateway, body())
    clock = asyncio.get_running_loop().time
    began = clock()
    for piece in range(pieces):
        assert len(await reader.readexactly(PIECE)) == PIECE
        await asyncio.sleep(0.05 if piece % 6 else 0.6 * LIMIT)
    assert clock() - began > 2 * LIMIT
    writer.close()
