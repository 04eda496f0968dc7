"""A ledger as its tests stand before it: who asks, who leaves, who got in, who was refused."""

from __future__ import annotations

from itertools import count
from typing import Any

from nproxy.gateway.admission.bounds import Bounds
from nproxy.gateway.admission.ledger import Ledger
from nproxy.gateway.admission.messages import Admitted, Answer, Ask, Leave, Refused

BOUNDS = Bounds(inflight=8, queue=100, seconds=10.0)


class Door:
    """A ledger, and tickets that say who they are: `door.ask("a", 2)` gives `a1`, `a2` ... and tells who got in."""

    def __init__(self, bounds: Bounds = BOUNDS) -> None:
        self.ledger = Ledger(bounds)
        self.now = 0.0
        self.said: list[Answer] = []
        self._numbers = count(1)

    def ask(self, key: str, choices: int = 1, upstream: str = "u", **fields: Any) -> str:
        ticket = f"{key}-{next(self._numbers)}"
        self.take(self.ledger.receive(Ask(ticket, key, upstream, choices, **fields), self.now))
        return ticket

    def leave(self, *tickets: str, tokens: int | None = None) -> list[str]:
        """Give back what they hold; who got in by it."""
        before = len(self.said)
        for ticket in tickets:
            self.take(self.ledger.receive(Leave(ticket, tokens), self.now))
        return [answer.ticket for answer in self.said[before:] if isinstance(answer, Admitted)]

    def take(self, answers: list[Answer]) -> None:
        self.said += answers

    def is_in(self, ticket: str) -> bool:
        return any(isinstance(answer, Admitted) and answer.ticket == ticket for answer in self.said)

    def refusal(self, ticket: str) -> Refused:
        (found,) = [answer for answer in self.said if isinstance(answer, Refused) and answer.ticket == ticket]
        return found
