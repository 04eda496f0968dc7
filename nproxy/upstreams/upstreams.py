"""All upstreams of a gateway: which there are, where they stand, and which of them is for a model."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from nproxy.config import ENGINE_UPSTREAM, Config, DnsName, Timeouts
from nproxy.config import Upstream as Settings
from nproxy.openai.errors import model_not_found
from nproxy.upstreams.dns import Names
from nproxy.upstreams.health_checker import CheckResult, watch
from nproxy.upstreams.http.connections import Connections
from nproxy.upstreams.membership import NOBODY, Registered
from nproxy.upstreams.models import ModelName
from nproxy.upstreams.peer_workers import PeerNews
from nproxy.upstreams.registry import Snapshot
from nproxy.upstreams.routes import Route, Routes
from nproxy.upstreams.tasks import beside
from nproxy.upstreams.upstream import Upstream
from nproxy.upstreams.via import Pseudonym

FIRST_LOOK_SECONDS = 5.0
"""How long the start waits for host names to be resolved; those that take longer come later."""


class Upstreams:
    """All upstreams of a configuration, in the file's order; the built-in engine first.

    pseudonym: what the gateway calls itself to all of them. tell_check: hears of each look at a replica.
    """

    def __init__(self, config: Config, engine_socket: Path | None, pseudonym: Pseudonym) -> None:
        self.pseudonym = pseudonym
        self.tell_check: Callable[[CheckResult], None] = lambda _: None
        self._share: Callable[[Upstream], None] = lambda _: None
        self._connections = Connections(pseudonym)
        self._addresses: Mapping[str, Sequence[str]] = {}
        self._registered: dict[str, Registered] = {}
        self.names = Names(self._host_names, self._resolved)
        self._engine_socket = engine_socket
        self.by_name: dict[str, Upstream] = {}
        self.reconfigure(config)

    def reconfigure(self, config: Config) -> None:
        """Take the upstreams of another configuration.

        Those whose settings stay are left alone, new ones are made; those that are gone get no new requests, and end
        when the calls that hold them have ended.
        """
        known, self.by_name = self.by_name, {}
        engine = [] if self._engine_socket is None else [_engine(self._engine_socket, config)]
        for settings in (*engine, *config.upstreams):
            upstream = known.get(settings.name)
            if upstream is None:
                upstream = Upstream(settings, self._connections)
                self._share(upstream)
            elif upstream.settings != settings:
                upstream.reconfigure(settings)
            upstream.gate.patience = config.limits.queue_seconds
            self.by_name[settings.name] = upstream
        self.all = tuple(self.by_name.values())
        self._take()
        self.names.soon()

    async def begin(self) -> None:
        """Resolve host names for the first time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LOOK_SECONDS):
                await self.names.once()

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Resolve host names again and again, and look at replicas, while the block runs."""
        async with beside(self.names.run(), watch(lambda: self.all, tell=lambda look: self.tell_check(look))):
            yield

    def share_room(self, process: str, tell: Callable[[PeerNews], None]) -> None:
        """Take turns with other processes of this gateway where a server is full. process: what they call this one."""
        self._share = lambda upstream: upstream.gate.share_room(upstream.name, process, tell)
        for upstream in self.all:
            self._share(upstream)

    def take_news(self, news: PeerNews) -> None:
        """Learn what another process tells of an upstream's room."""
        if (upstream := self.by_name.get(news.upstream)) is not None:
            upstream.gate.take_news(news)

    def remind(self) -> None:
        """Tell other processes again where some wait here."""
        for upstream in self.all:
            upstream.gate.remind()

    def take_check(self, look: CheckResult) -> None:
        """Learn what another process of this gateway saw of a replica."""
        if (upstream := self.by_name.get(look.upstream)) is not None:
            upstream.take_peer_check(look, random.random())

    def take_members(self, snapshot: Snapshot) -> None:
        """Take what was said over the admin port of all upstreams; what was said before and is not in it is over."""
        self._registered = {name: Registered.read(told) for name, told in snapshot.items()}
        self._take()

    def _resolved(self, addresses: Mapping[str, Sequence[str]]) -> None:
        self._addresses = addresses
        self._take()

    def _take(self) -> None:
        for upstream in self.all:
            upstream.take(self._addresses, self._registered.get(upstream.name, NOBODY))

    def _host_names(self) -> list[str]:
        replicas = [replica for upstream in self.all for replica in upstream.settings.replicas]
        return [replica.name for replica in replicas if isinstance(replica, DnsName)]

    @property
    def _only(self) -> Upstream | None:
        """The one upstream that there is, where nobody configured its models."""
        return self.all[0] if len(self.all) == 1 and not self.all[0].models.configured else None

    async def route(self, model: str) -> Route:
        """The upstream for a model: the first that has it, else the first whose list cannot be read.

        An upstream that is the only one, and whose models nobody configured, is left to say what it does not have.
        Raises ApiError 404 when there is none.
        """
        everyone, only = self.all, self._only
        if (known := await self.find(model)) is not None:
            return known
        for upstream in everyone:
            if upstream.models.takes_any() or (upstream is only and upstream.may_serve(model)):
                return Route(upstream, ModelName(model))
        raise model_not_found(model)

    async def find(self, model: str) -> Route | None:
        """The first upstream that has a model by just this name, else the first that has it as its `:latest`."""
        implied: Route | None = None
        for upstream in self.all:
            name = await upstream.models.find(model)
            if name is not None and not name.implied:
                return Route(upstream, name)
            if name is not None and implied is None:
                implied = Route(upstream, name)
        return implied

    def routes(self, first: Route, model: str | None, *, taken: bool = False) -> Routes:
        """Where a request may go, `first` and what is behind it; see Routes."""
        return Routes(self.by_name, first, model, taken=taken)

    async def unnamed(self) -> str | None:
        """The model of a request that names none: the only one that the only upstream lists."""
        only = self._only
        listed = [] if only is None else [*await only.models.entries()]
        return listed[0] if len(listed) == 1 else None

    async def close(self) -> None:
        """Close all connections."""
        await self._connections.close()


def _engine(socket: Path, config: Config) -> Settings:
    """The built-in engine as an upstream: native `n`, an exact wire, and no hurry while it computes.

    It shares computed prompts among the requests of one key: the client's own, or beside `auth` the caller's name.
    """
    return Settings.model_validate(
        {
            "name": ENGINE_UPSTREAM,
            "replicas": [f"unix:{socket}"],
            "n": "native",
            "wire": "exact",
            "api_key": "passthrough" if config.auth is None else "none",
            "timeouts": Timeouts(first_event=600, idle=300, response=None),
        }
    )
