"""Detects loops: through its replicas or through other gateways, a gateway may be an upstream of itself.

Every call carries the gateway's name in `Via`, as RFC 9110 (section 7.6.3) asks of gateways. A request that arrives
with this name has been here before.
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
    """The name of one gateway, with all of its processes, in `Via`: random, so that it tells nothing of a machine."""

    name: str = field(default_factory=_random)

    @property
    def entry(self) -> str:
        """What this gateway adds to `Via`, after the entries of those that have forwarded the request so far."""
        return f"1.1 {self.name}"

    def among(self, passed: Iterable[str]) -> bool:
        """Whether this gateway has forwarded a request before. passed: the values of all its `Via` headers."""
        return any(self.name in value for value in passed)
