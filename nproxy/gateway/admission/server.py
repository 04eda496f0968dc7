"""The admission server: runs a ledger by the event loop's clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from math import inf
from typing import Protocol

from nproxy.gateway.admission.bounds import Bounds
from nproxy.gateway.admission.ledger import Ledger
from nproxy.gateway.admission.messages import Answer, Ask, Leave, Level, Message

Deliver = Callable[[Answer], None]


class Transport(Protocol):
    """The connection from an admission client to the ledger.

    Answers are passed to the `Deliver` that it was made with, possibly during `send`.
    prefix: with what this client's tickets begin, and no other client's; without a hyphen.
    """

    prefix: str

    def at_once(self, ask: Ask) -> tuple[Level, ...] | None:
        """Try to admit a request in this call. Returns the levels of its key's rates; None: send the request."""

    def leave(self, ticket: str, tokens: int | None = None) -> None:
        """End a request; see `Leave`."""

    def send(self, message: Message) -> None:
        """Send a message. Those of one client arrive in their order."""

    def reconfigure(self, bounds: Bounds) -> None:
        """Set other limits."""

    def close(self) -> None:
        """Note that no message follows."""


Connect = Callable[[Deliver], Transport]
"""Makes the transport of an admission client."""


class AdmissionServer:
    """Runs a ledger in this process: as the transport of the client here, or in the parent for all workers' clients."""

    def __init__(self, bounds: Bounds, deliver: Deliver) -> None:
        self.prefix = "here"
        self.ledger = Ledger(bounds)
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time
        self._timer: asyncio.TimerHandle | None = None
        self._ticks_at = inf  # when the timer fires; uvloop's does not tell if that is now

    def at_once(self, ask: Ask) -> tuple[Level, ...] | None:
        """Admit a request that need not wait; see `Ledger.at_once`."""
        return self.ledger.at_once(ask, self._clock())

    def leave(self, ticket: str, tokens: int | None = None) -> None:
        """End a request; without a message, if no answer can follow."""
        if not self.ledger.leave_at_once(ticket, tokens, self._clock()):
            self.send(Leave(ticket, tokens))

    def send(self, message: Message) -> None:
        """Handle a client's message."""
        self._tell(self.ledger.receive(message, self._clock()))

    def lost(self, prefix: str) -> None:
        """Drop all requests of the client with this prefix, because it is gone."""
        self._tell(self.ledger.lost(f"{prefix}-", self._clock()))

    def reconfigure(self, bounds: Bounds) -> None:
        """Set other limits."""
        self._tell(self.ledger.reconfigure(bounds, self._clock()))

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _tell(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            self._deliver(answer)
        deadline = self.ledger.deadline()
        if self._timer is not None and (deadline is None or self._ticks_at > deadline):
            self._timer.cancel()
            self._timer = None
        if deadline is not None and self._timer is None:
            self._timer, self._ticks_at = self._loop.call_at(deadline, self._tick), deadline

    def _tick(self) -> None:
        self._timer = None
        self._tell(self.ledger.tick(self._clock()))


def owner(ticket: str) -> str:
    """Return the prefix of the client that issued a ticket."""
    return ticket.partition("-")[0]
