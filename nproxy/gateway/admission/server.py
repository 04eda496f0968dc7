"""The clerk: a ledger by the event loop's clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from nproxy.gateway.admission.bounds import Bounds
from nproxy.gateway.admission.ledger import Ledger
from nproxy.gateway.admission.messages import Answer, Ask, Message

Deliver = Callable[[Answer], None]


class Transport(Protocol):
    """The way from a desk to the ledger; answers come by the `Deliver` that it was made with, maybe while it sends.

    prefix: what begins this desk's tickets and no other's; no hyphen in it.
    """

    prefix: str

    def at_once(self, ask: Ask) -> bool:
        """Whether the request is let in by this call, without an answer; else it is to be sent."""

    def send(self, message: Message) -> None:
        """Hand over a message; those of one desk arrive in their order."""

    def reconfigure(self, bounds: Bounds) -> None:
        """Tell of other limits."""

    def close(self) -> None:
        """No message follows."""


Connect = Callable[[Deliver], Transport]
"""Makes a desk's transport."""


class AdmissionServer:
    """Runs a ledger in this process: for the desk here, as its transport, or in the parent for all workers' desks."""

    def __init__(self, bounds: Bounds, deliver: Deliver, prefix: str = "here") -> None:
        self.prefix = prefix
        self.ledger = Ledger(bounds)
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time
        self._timer: asyncio.TimerHandle | None = None

    def at_once(self, ask: Ask) -> bool:
        """Let a request in that nothing keeps waiting; see `Ledger.at_once`."""
        return self.ledger.at_once(ask, self._clock())

    def send(self, message: Message) -> None:
        """Take a desk's message."""
        self._tell(self.ledger.receive(message, self._clock()))

    def lost(self, prefix: str) -> None:
        """The desk whose tickets begin with this prefix is gone, and leaves with all of them."""
        self._tell(self.ledger.lost(f"{prefix}-", self._clock()))

    def reconfigure(self, bounds: Bounds) -> None:
        """Set other limits."""
        self._tell(self.ledger.reconfigure(bounds, self._clock()))

    def close(self) -> None:
        """Let nobody in any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _tell(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            self._deliver(answer)
        deadline = self.ledger.deadline()
        if self._timer is not None and (deadline is None or self._timer.when() > deadline):
            self._timer.cancel()
            self._timer = None
        if deadline is not None and self._timer is None:
            self._timer = self._loop.call_at(deadline, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._tell(self.ledger.tick(self._clock()))


def owner(ticket: str) -> str:
    """The prefix of the desk that a ticket is from."""
    return ticket.partition("-")[0]
