"""Servers that announced themselves, each for the time of its lease, and addresses that are being drained.

Pure: the time is an argument, in seconds of a clock that never goes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nproxy.upstreams.membership import Registered, Server

MOST_SERVERS = 512
"""Servers that may be announced at one time, over all upstreams: each is a label value in the metrics."""
MOST_DRAINING = 1024
"""Addresses that may be marked as draining at one time; the marks stay when the servers go."""

Snapshot = dict[str, Any]
"""What is registered of each upstream that has anything, as JSON holds them."""


class TooMany(Exception):
    """There is no room for another server, or another mark; the message says which."""


@dataclass(frozen=True, slots=True)
class _Lease:
    server: Server
    until: float


class Registry:
    """Who is announced where, and what drains. An upstream is given by its name, a server by what it is called."""

    def __init__(self) -> None:
        self._leases: dict[tuple[str, str], _Lease] = {}
        self._draining: set[tuple[str, str]] = set()

    def announce(self, upstream: str, server: Server, seconds: float, now: float) -> bool:
        """Take a server for so many seconds from now, or renew its lease; gives whether it is new. Raises TooMany."""
        key = (upstream, server.label)
        new = key not in self._leases
        if new and len(self._leases) >= MOST_SERVERS:
            raise TooMany(f"At most {MOST_SERVERS} servers can be registered.")
        self._leases[key] = _Lease(server, now + seconds)
        return new

    def leave(self, upstream: str, url: str) -> bool:
        """Let a server go; gives whether it was announced."""
        return self._leases.pop((upstream, url), None) is not None

    def drain(self, upstream: str, address: str) -> None:
        """Mark an address: its replica gets no new calls until `undrain`, though it go and come. Raises TooMany."""
        if len(self._draining) >= MOST_DRAINING and (upstream, address) not in self._draining:
            raise TooMany(f"At most {MOST_DRAINING} addresses can be marked as draining.")
        self._draining.add((upstream, address))

    def undrain(self, upstream: str, address: str) -> bool:
        """Take the mark away; gives whether there was one."""
        marked = (upstream, address) in self._draining
        self._draining.discard((upstream, address))
        return marked

    def expire(self, now: float) -> list[tuple[str, str]]:
        """Let all servers go whose leases have run out; gives their upstreams and URLs."""
        over = [key for key, lease in self._leases.items() if lease.until <= now]
        for key in over:
            del self._leases[key]
        return over

    def next_expiry(self) -> float | None:
        """When the next lease runs out; None where there is none."""
        return min((lease.until for lease in self._leases.values()), default=None)

    def leases(self, upstream: str, now: float) -> Mapping[str, float]:
        """How many seconds each server of an upstream may stay unless it renews, by its URL."""
        return {url: lease.until - now for (name, url), lease in self._leases.items() if name == upstream}

    def draining(self, upstream: str) -> frozenset[str]:
        """The addresses of an upstream that are marked."""
        return frozenset(address for name, address in self._draining if name == upstream)

    def snapshot(self) -> Snapshot:
        """All that replicas depend on, as JSON: leases are not in it, so that renewing one changes nothing."""
        names = sorted({name for name, _ in (*self._leases, *self._draining)})
        return {name: self._registered(name).to_json() for name in names}

    def _registered(self, upstream: str) -> Registered:
        servers = tuple(lease.server for (name, _), lease in self._leases.items() if name == upstream)
        return Registered(servers, self.draining(upstream))
