"""Servers that registered themselves, each for the time of its lease, and addresses that are being drained.

Pure: times are arguments, in seconds of a monotonic clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nproxy.upstreams.membership import Registered, Server

MOST_SERVERS = 512
"""Most servers that may be registered at one time, over all upstreams: each is a label value in the metrics."""
MOST_DRAINING = 1024
"""Most addresses that may be marked as draining at one time. A mark stays when the server goes."""

Snapshot = dict[str, Any]
"""What is registered for each upstream that has anything, as JSON data."""


class TooMany(Exception):
    """There is no room for another server, or for another mark; the message says for which."""


@dataclass(frozen=True, slots=True)
class _Lease:
    server: Server
    until: float


class Registry:
    """Which servers are registered where, and what drains. Upstreams are given by name, servers by label."""

    def __init__(self) -> None:
        self._leases: dict[tuple[str, str], _Lease] = {}
        self._draining: set[tuple[str, str]] = set()

    def announce(self, upstream: str, server: Server, seconds: float, now: float) -> bool:
        """Register a server for so many seconds, or renew its lease; return whether it is new. Raises TooMany."""
        key = (upstream, server.label)
        new = key not in self._leases
        if new and len(self._leases) >= MOST_SERVERS:
            raise TooMany(f"At most {MOST_SERVERS} servers can be registered.")
        self._leases[key] = _Lease(server, now + seconds)
        return new

    def leave(self, upstream: str, url: str) -> bool:
        """Remove a server; return whether it was registered."""
        return self._leases.pop((upstream, url), None) is not None

    def drain(self, upstream: str, address: str) -> None:
        """Mark an address: its replica gets no new calls until `undrain`, even if it returns. Raises TooMany."""
        if len(self._draining) >= MOST_DRAINING and (upstream, address) not in self._draining:
            raise TooMany(f"At most {MOST_DRAINING} addresses can be marked as draining.")
        self._draining.add((upstream, address))

    def undrain(self, upstream: str, address: str) -> bool:
        """Remove the mark; return whether there was one."""
        marked = (upstream, address) in self._draining
        self._draining.discard((upstream, address))
        return marked

    def expire(self, now: float) -> list[tuple[str, str]]:
        """Remove all servers whose leases have run out; return their upstreams and URLs."""
        over = [key for key, lease in self._leases.items() if lease.until <= now]
        for key in over:
            del self._leases[key]
        return over

    def next_expiry(self) -> float | None:
        """When the next lease runs out; None if there is none."""
        return min((lease.until for lease in self._leases.values()), default=None)

    def leases(self, upstream: str, now: float) -> Mapping[str, float]:
        """For how many more seconds each server of an upstream stays unless it renews its lease, by its URL."""
        return {url: lease.until - now for (name, url), lease in self._leases.items() if name == upstream}

    def draining(self, upstream: str) -> frozenset[str]:
        """The addresses of an upstream that are marked."""
        return frozenset(address for name, address in self._draining if name == upstream)

    def snapshot(self) -> Snapshot:
        """All data that replicas depend on, as JSON. Leases are not in it, so that renewing one changes nothing."""
        names = sorted({name for name, _ in (*self._leases, *self._draining)})
        return {name: self._registered(name).to_json() for name in names}

    def _registered(self, upstream: str) -> Registered:
        servers = tuple(lease.server for (name, _), lease in self._leases.items() if name == upstream)
        return Registered(servers, self.draining(upstream))
