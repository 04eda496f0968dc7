"""What leaves for the client of a stream: the head once, then one write a turn, and a ping where nothing is written."""

from __future__ import annotations

from nproxy.choices.commands import Begin, Command, Emit, SetTimer
from nproxy.choices.events import Timer, TimerKind
from nproxy.openai.wire import PING


class OutputBuffer:
    """Joins what is written in one turn. Nothing leaves before the head: what was written until then is dropped.

    writes: what is to leave with the turn; who has something appends it.
    ping_seconds: how long the client may hear nothing.
    """

    def __init__(self, ping_seconds: float) -> None:
        self.begun = False
        self._half_a_ping = ping_seconds / 2
        self._silent = True  # nothing has left since the last tick
        self.writes: list[bytes] = []

    def begin(self, headers: tuple[tuple[str, str], ...]) -> list[Command]:
        """Send the head, once."""
        self.begun = True
        return [Begin(headers), self._next_tick()]

    def tick(self) -> list[Command]:
        """Half a ping time has passed: where nothing left in it, the client gets a sign of life."""
        if self._silent:
            self.writes.append(PING)
        self._silent = True
        return [self._next_tick()]

    def flush(self) -> Emit | None:
        """End the turn; None where nothing leaves."""
        if not self.writes:
            return None
        writes, self.writes = self.writes, []
        if not self.begun:
            return None
        self._silent = False
        return Emit(writes[0] if len(writes) == 1 else b"".join(writes))

    def _next_tick(self) -> SetTimer:
        return SetTimer(Timer(TimerKind.PING), self._half_a_ping)
