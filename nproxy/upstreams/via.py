"""Loops: a gateway may be, through its replicas or through other gateways, an upstream of its own.

Every call carries the gateway's name in `Via`, as RFC 9110 (section 7.6.3) asks of gateways; a request that comes with
it has been here before.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field

_BYTES = 8


def _random() -> str:
    return f"nproxy-{secrets.token_hex(_BYTES)}"


@dataclass(frozen=True, slots=True)
class Pseudonym:
    """What one gateway, all of its processes, is called in `Via`: random, so that it tells nothing of a machine."""

    name: str = field(default_factory=_random)

    @property
    def entry(self) -> str:
        """What this gateway adds, behind those that have sent a request on so far."""
        return f"1.1 {self.name}"

    def among(self, passed: Iterable[str]) -> bool:
        """Whether a request has been sent on by this gateway. passed: the values of all its `Via` headers."""
        return any(self.name in value for value in passed)
