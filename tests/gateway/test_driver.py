"""The driver under commands that only a test gives: what a call says behind its cancellation is not heard."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

from nproxy.choices.commands import CancelLeg, Command, Emit, Finish, OpenLeg
from nproxy.choices.events import Event, LegChunk, LegEnded
from nproxy.choices.leg import Leg
from nproxy.gateway.driver import Drive
from nproxy.upstreams.event_stream import Take

LEG = Leg(0, 0, 1)
OLD, NEW = LegChunk(0, b"of the call that was cancelled"), LegChunk(0, b"of the one made instead")


class Script:
    """In the place of the conduct: one call, another one instead at its first word, the end when that one ends."""

    def __init__(self) -> None:
        self.heard: list[Event] = []

    def start(self) -> list[Command]:
        return [OpenLeg(LEG, 0, False)]

    def receive(self, events: Sequence[Event]) -> list[Command]:
        self.heard += events
        if any(isinstance(event, LegEnded) for event in events):
            return [Emit(b"x"), Finish("ok")]
        return [CancelLeg(0), OpenLeg(LEG, 1, False)] if self.heard == [OLD] else []


async def test_a_call_is_not_heard_behind_its_cancellation() -> None:
    async def open_call(command: OpenLeg, take: Take) -> None:
        if command.attempt:
            take([NEW, LegEnded(0)])
            return
        take([OLD])
        try:
            await asyncio.sleep(3600)
        finally:
            take([OLD])  # a segment that was read before the socket was closed

    async def finish(data: bytes) -> None:
        assert data == b"x"

    script = Script()
    nothing = SimpleNamespace(leg_opened=_ignore, leg_closed=_ignore, batch=_ignore)
    exchange = SimpleNamespace(attempts=0, outcome="", finish=finish)
    whatever = cast(Any, _ignore)
    drive = Drive(
        cast(Any, exchange),
        cast(Any, script),
        cast(Any, nothing),
        open_call=open_call,
        learn=whatever,
        judge=whatever,
    )
    async with asyncio.timeout(5):
        await drive.run()
    assert script.heard == [OLD, NEW, LegEnded(0)] and exchange.attempts == 2


def _ignore(*_: object) -> None:
    """What nobody looks at here."""
