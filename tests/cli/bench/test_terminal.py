"""`nproxy bench` at a real terminal: a line that says how far it is, and Ctrl-C."""

from __future__ import annotations

import asyncio

from tests.fakes.terminal import CONTROL_C, nproxy, terminal
from tests.fakes.upstream import Behaviour, FakeUpstream

NATIVE = Behaviour(n="native")


async def test_it_shows_how_far_it_is_and_ctrl_c_gives_what_was_measured() -> None:
    held = Behaviour(hold=asyncio.Event())
    async with FakeUpstream(NATIVE) as server:
        server.script(NATIVE, NATIVE, NATIVE, held)  # the first is the warm-up
        async with terminal(*nproxy("bench", server.url, "--concurrency", "1")) as screen:
            await screen.until("2 ended, 1 in flight, ")
            screen.type(CONTROL_C)
            assert await screen.ended() == 130
            said = await screen.until("end of a request")
    assert "2 answered, 0 failed, 1 cut off" in said
    assert "(ended early)" in said
    assert "Traceback" not in said


async def test_ctrl_c_while_warming_up() -> None:
    held = Behaviour(hold=asyncio.Event())
    async with FakeUpstream(held) as server, terminal(*nproxy("bench", server.url)) as screen:
        await screen.until("warming up")
        await server.until(lambda: len(server.calls) == 1, 60)
        screen.type(CONTROL_C)
        assert await screen.ended() == 130
        said = await screen.until("0 answered, 0 failed")
    assert "Traceback" not in said
