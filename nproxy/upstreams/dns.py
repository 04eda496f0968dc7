"""Host names with servers behind them. They are resolved again and again; while that fails, their addresses stay.

This uses the system's resolver, which knows hosts files and search domains, but gives no time to live. So names are
resolved at a fixed interval. That a name cannot be resolved does not mean that its servers are gone.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from nproxy.upstreams.lookup import NO_ADDRESS, look_up

INTERVAL_SECONDS = 5.0
JITTER = 0.2
"""Each interval is longer or shorter by up to this share, so that gateways started together do not ask at the same
time.
"""
FORGET_SECONDS = 300.0
"""How long a name keeps its addresses when resolvers say that it has none. While resolvers fail, it keeps them for
good.
"""

log = logging.getLogger("nproxy.upstreams")

Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""Returns the addresses of a name, none if it has none; raises OSError if that cannot be found out."""


async def resolve(name: str) -> list[str]:
    """All IPv4 and IPv6 addresses of a name by the system's resolver, except those valid on one link only.

    Raises OSError if the resolver fails.
    """
    try:
        found = await look_up(name, None)
    except socket.gaierror as error:
        if error.errno in NO_ADDRESS:
            return []
        raise
    return [str(address[0]) for *_, address in found if "%" not in str(address[0])]


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of one name.

    addresses: sorted. result: that of the last lookup; None before the first. none_since: since when the name has
    had no address, in seconds of a monotonic clock; None if it has some.
    """

    addresses: tuple[str, ...] = ()
    result: Literal["addresses", "none", "failure"] | None = None
    none_since: float | None = None

    @property
    def resolved(self) -> bool | None:
        """Whether the last lookup found addresses; None before the first."""
        return None if self.result is None else self.result == "addresses"

    def after(self, found: Sequence[str] | None, now: float) -> Known:
        """What is known after another lookup. found: its result; None if it failed."""
        if found:
            return Known(tuple(sorted(set(found))), "addresses")
        if found is None:
            return replace(self, result="failure")
        since = now if self.none_since is None else self.none_since
        return Known(self.addresses if now - since < FORGET_SECONDS else (), "none", since)


class Names:
    """Keeps the addresses of some names up to date.

    names: returns the names that are wanted now. changed: called with the addresses of all of them when any have
    changed. look_up: None for the system's resolver.
    """

    def __init__(
        self,
        names: Callable[[], Iterable[str]],
        changed: Callable[[Mapping[str, tuple[str, ...]]], None],
        look_up: Resolve | None = None,
    ) -> None:
        self._names = names
        self._changed = changed
        self._look_up = look_up or resolve
        self._known: dict[str, Known] = {}
        self._looking: set[str] = set()
        self._soon = asyncio.Event()

    async def run(self) -> None:
        """Look up all names at every interval, until cancelled. A slow lookup does not hold up the others."""
        async with asyncio.TaskGroup() as lookups:
            while True:
                self._soon.clear()
                for name in self._wanted() - self._looking:
                    lookups.create_task(self._look(name))
                pause = INTERVAL_SECONDS * random.uniform(1 - JITTER, 1 + JITTER)
                try:
                    async with asyncio.timeout(pause):
                        await self._soon.wait()
                except TimeoutError:
                    pass

    def known(self, name: str) -> Known:
        """What is known of a name."""
        return self._known.get(name, Known())

    def soon(self) -> None:
        """Start the next round of lookups now, because other names may be wanted."""
        self._soon.set()

    async def once(self) -> None:
        """Look up every name that has not been looked up yet, all at the same time."""
        await asyncio.gather(*(self._look(name) for name in self._wanted() - self._known.keys() - self._looking))

    def _wanted(self) -> set[str]:
        wanted = set(self._names())
        for name in self._known.keys() - wanted:
            del self._known[name]
        return wanted

    async def _look(self, name: str) -> None:
        self._looking.add(name)
        found: Sequence[str] | None = None
        why = ""
        try:
            found = await self._look_up(name)
        except OSError as error:
            why = error.strerror or str(error)
        finally:
            self._looking.discard(name)
        before = self.known(name)
        known = self._known[name] = before.after(found, time.monotonic())
        if known.result != before.result or known.addresses != before.addresses:
            _tell(name, known, why)
        if known.addresses != before.addresses:
            self._changed({name: known.addresses for name, known in self._known.items()})


def _tell(name: str, known: Known, why: str) -> None:
    """Log a change in what is known of a name."""
    fields: dict[str, object] = {"name": name, "addresses": known.addresses}
    match known.result:
        case "addresses":
            log.info("a host name was resolved", extra={"fields": fields})
        case "none":
            log.warning("a host name has no addresses", extra={"fields": fields})
        case _:
            log.warning("a host name cannot be resolved", extra={"fields": {**fields, "why": why}})
