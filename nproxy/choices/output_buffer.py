"""What is sent to the client of a stream: the head once, then one write per turn, and a ping if nothing is written."""

from __future__ import annotations

from nproxy.choices.commands import Begin, Command, Emit, SetTimer
from nproxy.choices.events import Timer, TimerKind
from nproxy.choices.plan import Way
from nproxy.openai.wire import PING


class OutputBuffer:
    """Joins what is written in one turn. Nothing is sent before the head: what was written until then is dropped.

    writes: what is to be sent at the end of the turn; callers append to it, and the merge has the same list.
    ping_seconds: how long the client may hear nothing.
    """

    def __init__(self, ping_seconds: float, writes: list[bytes]) -> None:
        self.begun = False
        self._half_a_ping = ping_seconds / 2
        self._silent = True  # nothing has been sent since the last tick
        self.writes = writes

    def begin(self, way: Way) -> list[Command]:
        """Send the head. Called once."""
        self.begun = True
        return [Begin(way), self._next_tick()]

    def tick(self) -> list[Command]:
        """Half of the ping time has passed: if nothing was sent in it, send the client a ping."""
        if self._silent:
            self.writes.append(PING)
        self._silent = True
        return [self._next_tick()]

    def flush(self) -> Emit | None:
        """End the turn. Returns None if nothing is sent."""
        writes = self.writes
        if not writes:
            return None
        data = writes[0] if len(writes) == 1 else b"".join(writes)
        writes.clear()
        if not self.begun:
            return None
        self._silent = False
        return Emit(data)

    def _next_tick(self) -> SetTimer:
        return SetTimer(Timer(TimerKind.PING), self._half_a_ping)
