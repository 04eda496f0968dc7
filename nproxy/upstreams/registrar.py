"""A registry with a clock: leases run out by themselves, and every change is published."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from nproxy.upstreams.membership import Server
from nproxy.upstreams.registry import Registry, Snapshot

log = logging.getLogger("nproxy.upstreams")


class Registrar:
    """Keeps one registry up to date. publish: called with its snapshot whenever that has changed."""

    def __init__(self, publish: Callable[[Snapshot], None]) -> None:
        self.registry = Registry()
        self._publish = publish
        self._published: Snapshot = {}
        self._sooner = asyncio.Event()

    def announce(self, upstream: str, server: Server, seconds: float) -> bool:
        """See Registry.announce."""
        new = self.registry.announce(upstream, server, seconds, time.monotonic())
        if new:
            log.info("a server has registered", extra={"fields": {"upstream": upstream, "replica": server.label}})
        self._changed()
        return new

    def leave(self, upstream: str, url: str) -> bool:
        """See Registry.leave."""
        left = self.registry.leave(upstream, url)
        if left:
            log.info("a server has deregistered", extra={"fields": {"upstream": upstream, "replica": url}})
        self._changed()
        return left

    def drain(self, upstream: str, address: str) -> None:
        """See Registry.drain."""
        self.registry.drain(upstream, address)
        log.info("a replica is draining", extra={"fields": {"upstream": upstream, "replica": address}})
        self._changed()

    def undrain(self, upstream: str, address: str) -> bool:
        """See Registry.undrain."""
        marked = self.registry.undrain(upstream, address)
        if marked:
            log.info("a replica is no longer draining", extra={"fields": {"upstream": upstream, "replica": address}})
        self._changed()
        return marked

    def draining(self, upstream: str) -> frozenset[str]:
        """See Registry.draining."""
        return self.registry.draining(upstream)

    def leases(self, upstream: str) -> dict[str, float]:
        """See Registry.leases."""
        return dict(self.registry.leases(upstream, time.monotonic()))

    async def run(self) -> None:
        """Remove servers when their leases run out, until cancelled."""
        while True:
            self._sooner.clear()
            until = self.registry.next_expiry()
            try:
                async with asyncio.timeout(None if until is None else max(0.0, until - time.monotonic())):
                    await self._sooner.wait()
            except TimeoutError:
                self._expire()

    def _expire(self) -> None:
        for upstream, url in self.registry.expire(time.monotonic()):
            fields = {"upstream": upstream, "replica": url}
            log.warning("a server has not renewed its lease", extra={"fields": fields})
        self._changed()

    def _changed(self) -> None:
        self._sooner.set()
        snapshot = self.registry.snapshot()
        if snapshot != self._published:
            self._published = snapshot
            self._publish(snapshot)
