"""All upstreams of a gateway: which there are, the state of their replicas, and which of them serves a model."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import chain
from pathlib import Path

from nproxy.concurrency.tasks import beside
from nproxy.config import ENGINE_UPSTREAM, Config, DnsName, Timeouts
from nproxy.config import Upstream as Settings
from nproxy.openai.errors import model_not_found
from nproxy.upstreams.dns import Known, Names
from nproxy.upstreams.health_checker import watch
from nproxy.upstreams.health_checks import CheckResult
from nproxy.upstreams.http.connections import Connections
from nproxy.upstreams.list_keeper import ListKeeper
from nproxy.upstreams.membership import NOBODY, Registered
from nproxy.upstreams.models import WAIT_SECONDS, ModelList, ModelName
from nproxy.upstreams.overload.peer_workers import PeerNews
from nproxy.upstreams.registry import Snapshot
from nproxy.upstreams.routes import Route, Routes
from nproxy.upstreams.upstream import Upstream
from nproxy.upstreams.via import Pseudonym

FIRST_LOOK_SECONDS = 5.0
"""How long the start waits for host names to be resolved. Replicas behind names that take longer are added later."""


class Upstreams:
    """All upstreams of a configuration, in the file's order, after the built-in engine.

    pseudonym: this gateway's name in the `Via` headers of all calls. tell_check: called with each result of a health
    check.
    """

    def __init__(self, config: Config, engine_socket: Path | None, pseudonym: Pseudonym) -> None:
        self.pseudonym = pseudonym
        self.tell_check: Callable[[CheckResult], None] = lambda _: None
        self._share: Callable[[Upstream], None] = lambda _: None
        self._connections = Connections(pseudonym)
        self._addresses: Mapping[str, Sequence[str]] = {}
        self._registered: dict[str, Registered] = {}
        self._legs_elsewhere: dict[str, Mapping[str, Mapping[str, int]]] = {}  # by process, upstream and replica
        self._host_names: dict[str, Sequence[str]] = {}  # by upstream
        self.names = Names(lambda: chain(*self._host_names.values()), self._resolved)
        self._lists = ListKeeper(lambda: self.all)
        self._engine_socket = engine_socket
        self.by_name: dict[str, Upstream] = {}
        self.reconfigure(config)

    def reconfigure(self, config: Config) -> None:
        """Take the upstreams of another configuration.

        Those whose settings stay the same are left alone, and new ones are made. Those that are gone get no new
        requests, and end with the last call that holds them.
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
        self._host_names = {
            upstream.name: [entry.name for entry in upstream.settings.replicas if isinstance(entry, DnsName)]
            for upstream in self.all
        }
        self._reads_lists = not all(upstream.models.configured for upstream in self.all)
        self._count_legs_elsewhere()
        self._take()
        self.names.soon()

    async def begin(self) -> None:
        """Resolve host names for the first time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_LOOK_SECONDS):
                await self.names.once()

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Resolve host names again and again, read model lists, and check replicas, while the block runs."""
        checks = watch(lambda: self.all, tell=lambda check: self.tell_check(check))
        async with beside(self.names.run(), self._lists.run(), checks):
            yield

    def share_room(self, process: str, tell: Callable[[PeerNews], None]) -> None:
        """Share the capacity of upstreams with other processes of this gateway. process: their name of this one.

        tell: sends them news.
        """
        self._share = lambda upstream: upstream.gate.queues.share_room(upstream.name, process, tell)
        for upstream in self.all:
            self._share(upstream)

    def take_news(self, news: PeerNews) -> None:
        """Take news of another process about an upstream's capacity."""
        if (upstream := self.by_name.get(news.upstream)) is not None:
            upstream.gate.queues.take_news(news)

    @property
    def legs(self) -> dict[str, dict[str, int]]:
        """The calls in flight at replicas that take a limited number, by upstream and replica."""
        return {upstream.name: legs for upstream in self.all if (legs := upstream.gate.legs)}

    def take_legs_elsewhere(self, process: str, legs: Mapping[str, Mapping[str, int]]) -> None:
        """Take the calls that a predecessor of this process still has; what it had before is forgotten.

        They count against `parallel`, of which this process has its predecessors' part.
        """
        self._legs_elsewhere.pop(process, None)
        if legs:
            self._legs_elsewhere[process] = legs
        self._count_legs_elsewhere()

    def _count_legs_elsewhere(self) -> None:
        for upstream in self.all:
            counted = Counter[str]()
            for legs in self._legs_elsewhere.values():
                counted.update(legs.get(upstream.name, {}))
            upstream.gate.take_legs_elsewhere(counted)

    def remind(self) -> None:
        """Tell other processes again where legs wait here."""
        for upstream in self.all:
            upstream.gate.queues.remind()

    def take_check(self, check: CheckResult) -> None:
        """Take the result of a health check of another process of this gateway."""
        if (upstream := self.by_name.get(check.upstream)) is not None:
            upstream.take_peer_check(check, random.random())

    def take_members(self, snapshot: Snapshot) -> None:
        """Take what is registered over the admin port for all upstreams. It replaces what was registered before."""
        self._registered = {name: Registered.read(data) for name, data in snapshot.items()}
        self._take()

    def _resolved(self, addresses: Mapping[str, Sequence[str]]) -> None:
        self._addresses = addresses
        self._take()

    def _take(self) -> None:
        for upstream in self.all:
            upstream.take(self._addresses, self._registered.get(upstream.name, NOBODY))
        self._lists.soon()

    def hosts(self, upstream: Upstream) -> dict[str, Known]:
        """The host names among an upstream's replicas, and what is known of each."""
        return {name: self.names.known(name) for name in self._host_names.get(upstream.name, ())}

    @property
    def _only(self) -> Upstream | None:
        """The upstream if there is only one and its models are not configured; else None."""
        return self.all[0] if len(self.all) == 1 and not self.all[0].models.configured else None

    def at_hand(self, model: str) -> Route | None:
        """What `route` finds, if one is known and no list has to be waited for; else None."""
        route = self.known(model)
        return None if route is None or self._unread(route) else route

    async def route(self, model: str) -> Route:
        """Find the upstream for a model: the first that has it, else the first without a readable list.

        If there is only one upstream, and its models are not configured, it is left to reject what it does not have.
        Raises ApiError 404 if there is none.
        """
        if (known := await self.find(model)) is not None:
            return known
        only = self._only
        for upstream in self.all:
            if upstream.models.takes_any() or (upstream is only and upstream.may_serve(model)):
                return Route(upstream, ModelName(model))
        raise model_not_found(model)

    async def find(self, model: str) -> Route | None:
        """Like `known`, but wait for a moment if that may change: for lists that were never read, or if none has it."""
        route = self.known(model)
        if self._unread(route):
            await self._lists.wait(lambda: self._patience(self.known(model)))
            route = self.known(model)
        return route

    def _unread(self, route: Route | None) -> bool:
        """Whether a list is to be read now by which a model goes to `route`. Has those read that are old."""
        return self._reads_lists and self._lists.want(self._decisive(route), lacking=route is None)

    def _decisive(self, route: Route | None) -> list[ModelList]:
        """The lists by which a model goes to `route`: up to the one that has it by exactly its name."""
        last = None if route is None or route.name.implied else self.all.index(route.upstream) + 1
        return [upstream.models for upstream in self.all[:last] if not upstream.models.configured]

    def _patience(self, route: Route | None) -> float:
        """How many seconds a request may wait, if it went to `route` now. The only upstream gets it anyway."""
        lost = route is None and self._only is None
        return max((one.patience(lost=lost) for one in self._decisive(route)), default=0.0)

    def known(self, model: str) -> Route | None:
        """Find the first upstream that has a model by exactly this name, else the first that has it as `:latest`.

        A fallback of the latter does not come first, even if it has the model by exactly this name.
        """
        implied: Route | None = None
        for upstream in self.all:
            name = upstream.models.find(model)
            if name is not None and not name.implied:
                if implied is not None and upstream.name in implied.upstream.fallback:
                    return implied
                return Route(upstream, name)
            if name is not None and implied is None:
                implied = Route(upstream, name)
        return implied

    def routes(self, first: Route, model: str | None, *, taken: bool = False) -> Routes:
        """The routes of a request: `first` and its fallbacks; see Routes."""
        return Routes(self.by_name, first, model, self._listed_at, taken=taken)

    async def _listed_at(self, upstream: Upstream, model: str) -> ModelName | None:
        """The names of a model at an upstream; None if its list lacks it.

        Waits for a list that was never read, unless the upstream has no replica in order and so is passed over.
        """
        models = upstream.models
        if not models.configured:
            self._lists.want((models,), lacking=models.lacks(model))
            await self._lists.wait(lambda: models.patience(lost=False) if upstream.gate.usable() else 0.0)
        return models.find(model)

    async def renew(self, *, lacking: bool = False) -> None:
        """Read old lists again, and wait for a moment. lacking: they are read for a model that they lack."""
        lists = [upstream.models for upstream in self.all]
        self._lists.want(lists, lacking=lacking)
        await self._lists.wait(lambda: min(WAIT_SECONDS, max((one.patience(lost=True) for one in lists), default=0.0)))

    async def unnamed(self) -> str | None:
        """The model of a request that names none: the only model in the list of the only upstream; else None."""
        if (only := self._only) is None:
            return None
        models = only.models
        self._lists.want((models,), lacking=len(models.entries()) != 1)
        await self._lists.wait(lambda: models.patience(lost=len(models.entries()) != 1))
        listed = [*models.entries()]
        return listed[0] if len(listed) == 1 else None

    async def close(self) -> None:
        """Close all connections."""
        await self._connections.close()


def _engine(socket: Path, config: Config) -> Settings:
    """The settings of the built-in engine as an upstream: native `n`, an exact wire, and long time limits.

    It shares computed prompts among the requests of one key: the client's own key, or with `auth` the caller's name.
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
