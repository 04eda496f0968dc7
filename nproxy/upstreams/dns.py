"""Host names that have servers behind them: looked up again and again, and kept as they were while nobody can say.

By the system's own resolver, which knows hosts files and search domains and tells no time to live: so names are looked
up at an interval. A name that cannot be resolved is no sign that its servers are gone.
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

INTERVAL_SECONDS = 5.0
JITTER = 0.2
"""Gateways that were started together do not ask together: each interval is longer or shorter by up to this share."""
FORGET_SECONDS = 300.0
"""How long a name that resolvers say has no address keeps those it had. While they fail, it keeps them for good."""

_NO_ADDRESS = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})

log = logging.getLogger("nproxy.upstreams")

Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""Gives a name's addresses, none where it has none; raises OSError where that cannot be said."""


async def resolve(name: str) -> list[str]:
    """All IPv4 and IPv6 addresses of a name, as the system resolves it; those that hold on one link only are left out.

    Raises OSError where the resolver fails.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno in _NO_ADDRESS:
            return []
        raise
    return [str(address[0]) for *_, address in found if "%" not in str(address[0])]


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of one name. addresses: in order. said: how the last look ended. none_since: when it began to have
    no address, None where it has some; in the clock's seconds.
    """

    addresses: tuple[str, ...] = ()
    said: Literal["addresses", "none", "failure"] | None = None
    none_since: float | None = None

    def after(self, found: Sequence[str] | None, now: float) -> Known:
        """What is known once another look has found this; None: it failed."""
        if found:
            return Known(tuple(sorted(set(found))), "addresses")
        if found is None:
            return replace(self, said="failure")
        since = now if self.none_since is None else self.none_since
        return Known(self.addresses if now - since < FORGET_SECONDS else (), "none", since)


class Names:
    """Keeps the addresses of some names.

    names: those that are wanted now. changed: called with the addresses of all of them when any have changed. look_up:
    None for the system's resolver.
    """

    def __init__(
        self,
        names: Callable[[], Iterable[str]],
        changed: Callable[[Mapping[str, tuple[str, ...]]], None],
        look_up: Resolve | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._names = names
        self._changed = changed
        self._look_up = look_up or resolve
        self._clock = clock
        self._known: dict[str, Known] = {}
        self._looking: set[str] = set()
        self._soon = asyncio.Event()

    async def run(self) -> None:
        """Look up all names at every interval, until cancelled; one that takes long holds up no other."""
        async with asyncio.TaskGroup() as looks:
            while True:
                self._soon.clear()
                for name in self._wanted() - self._looking:
                    looks.create_task(self._look(name))
                pause = INTERVAL_SECONDS * random.uniform(1 - JITTER, 1 + JITTER)
                try:
                    async with asyncio.timeout(pause):
                        await self._soon.wait()
                except TimeoutError:
                    pass

    def soon(self) -> None:
        """Look now: other names may be wanted."""
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
        before = self._known.get(name, Known())
        known = self._known[name] = before.after(found, self._clock())
        if known.said != before.said or known.addresses != before.addresses:
            _tell(name, known, why)
        if known.addresses != before.addresses:
            self._changed({name: known.addresses for name, known in self._known.items()})


def _tell(name: str, known: Known, why: str) -> None:
    """Log what became of a name: once for each change, however often it is looked up."""
    fields: dict[str, object] = {"name": name, "addresses": known.addresses}
    match known.said:
        case "addresses":
            log.info("a host name was resolved", extra={"fields": fields})
        case "none":
            log.warning("a host name has no addresses", extra={"fields": fields})
        case _:
            log.warning("a host name cannot be resolved", extra={"fields": {**fields, "why": why}})
