"""What is sent to the client of a stream: the head once, then one write per turn, and a ping if nothing is written."""

from __future__ import annotations

from nproxy.choices.commands import Begin, Command, Emit, SetTimer
from nproxy.choices.events import Timer, TimerKind
from nproxy.choices.plan import Way
from nproxy.openai.wire import PING


class OutputBuffer:
    """Joins what is written in one turn. Nothing is sent before the head: what was written until then is dropped.

    writes: what is to be sent at the end of the turn; callers append to it, and the merge has the same list.
    ping_seconds: how long the client may hear nothing. begun: the head was sent, and maybe pings, for another upstream.
    """

    def __init__(self, ping_seconds: float, writes: list[bytes], begun: bool = False) -> None:
        self.begun = begun
        self._half_a_ping = ping_seconds / 2
        self._silent = True  # nothing has been sent since the last tick
        self._spoken = False  # more than pings was sent
        self.writes = writes

    @property
    def spoken(self) -> bool:
        """Whether the client has more than pings, or gets it in this turn."""
        return self._spoken or (self.begun and any(data is not PING for data in self.writes))

    def begin(self, way: Way) -> list[Command]:
        """Send the head. Called once."""
        self.begun = True
        return [Begin(way), self.next_tick()]

    def tick(self) -> list[Command]:
        """Half of the ping time has passed: if nothing was sent in it, send the client a ping."""
        if self._silent:
            self.writes.append(PING)
        self._silent = True
        return [self.next_tick()]

    def flush(self) -> Emit | None:
        """End a turn in which something was written. Returns None if nothing is sent."""
        writes = self.writes
        data = writes[0] if len(writes) == 1 else b"".join(writes)
        writes.clear()
        if not self.begun:
            return None
        self._silent = False
        if data is not PING:
            self._spoken = True
        return Emit(data)

    def next_tick(self) -> SetTimer:
        """Return the timer for the next tick. `begin` sets the first one; without it, the caller does."""
        return SetTimer(Timer(TimerKind.PING), self._half_a_ping)
