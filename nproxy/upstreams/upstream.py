"""An upstream at work: its replicas behind one gate, its abilities, its models, its retry budget."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

from pydantic import SecretStr

from nproxy.choices.events import Event, LegEnded
from nproxy.config import ENGINE_UPSTREAM, Config, DnsName, Timeouts
from nproxy.config import Upstream as Settings
from nproxy.openai.errors import model_not_found
from nproxy.upstreams.capabilities import Capabilities
from nproxy.upstreams.client import Call, Client
from nproxy.upstreams.company import Company
from nproxy.upstreams.dns import Names, resolve
from nproxy.upstreams.forward import ForwardError, fetch
from nproxy.upstreams.gate import Gate
from nproxy.upstreams.headers import upward
from nproxy.upstreams.kin import Kin
from nproxy.upstreams.membership import NOBODY, Guests, members
from nproxy.upstreams.models import ModelList, ModelName
from nproxy.upstreams.registry import Snapshot
from nproxy.upstreams.replicas import Replica
from nproxy.upstreams.retry_budget import RetryBudget
from nproxy.upstreams.sessions import Sessions

LIST_SECONDS = 3.0
LIST_BYTES = 4 << 20
FIRST_LOOK_SECONDS = 5.0
"""How long the start waits for host names to be resolved; those that take longer come later."""
_NO_HEADERS: Mapping[str, str] = {}

_TEACHING = frozenset({"replicas", "models", "n", "wire", "parallel", "seed", "prefix_cache", "usage", "prompts"})
"""Settings with which an upstream may be another server, or may be asked otherwise."""


class Upstream:
    """One configured upstream. Its parts are public: the driver plans by `capabilities` and retries by `budget`."""

    def __init__(self, settings: Settings, sessions: Sessions) -> None:
        self.settings = settings
        self.name = settings.name
        self._sessions = sessions
        self._addresses: Mapping[str, Sequence[str]] = {}
        self._guests = NOBODY
        self.client = Client(sessions, settings.timeouts, settings.name)
        self.gate = Gate(members(settings.replicas, {}), _parallel(settings))
        self.capabilities = self._capabilities()
        self.budget = RetryBudget(settings.retries.budget)
        self.models = self._models()

    def reconfigure(self, settings: Settings) -> None:
        """Take new settings: those who come next are served by them, calls in flight go on with what they have.

        What was learned is forgotten where it may have changed.
        """
        changed = {key for key in Settings.model_fields if getattr(settings, key) != getattr(self.settings, key)}
        self.settings = settings
        self.client = Client(self._sessions, settings.timeouts, settings.name)
        self.budget.share = settings.retries.budget
        if changed & _TEACHING:
            self.capabilities = self._capabilities()
        if "models" in changed:
            self.models = self._models()
        self.gate.parallel = _parallel(settings)
        self._place()

    def take(self, addresses: Mapping[str, Sequence[str]], guests: Guests) -> None:
        """Learn what host names resolve to now, and which servers came by themselves; replicas come and go with it."""
        if guests.servers != self._guests.servers:
            self.models.outdated()
        self._addresses, self._guests = addresses, guests
        self._place()

    def _place(self) -> None:
        self.gate.replace(members(self.settings.replicas, self._addresses, self._guests))

    def _capabilities(self) -> Capabilities:
        return Capabilities(self.settings, lambda: len(self.gate.replicas))

    def _models(self) -> ModelList:
        models = self.settings.models
        return ModelList(None if models == "auto" else models, self._fetch_models, self._announced_models)

    def _announced_models(self) -> set[str]:
        return set().union(*(replica.models for replica in self.gate.replicas if replica.models is not None))

    def may_serve(self, model: str) -> bool:
        """Whether not all of its servers have said that they do not serve a model."""
        replicas = self.gate.replicas
        return not replicas or any(replica.serves(model) for replica in replicas)

    @property
    def timeouts(self) -> Timeouts:
        return self.settings.timeouts

    def caller_shown(self, name: str) -> str:
        """What it is told of who calls: nproxy's own engine the caller's name, any other server nothing."""
        return name if self.settings.wire == "exact" else ""

    @property
    def own_key(self) -> bool:
        """Whether calls carry nproxy's own key, so that a 401 is not the client's fault."""
        return isinstance(self.settings.api_key, SecretStr)

    async def call(self, call: Call, kin: Kin | None = None, *, alone: bool = False) -> AsyncGenerator[list[Event]]:
        """Wait at the gate, then send one leg, where its kin is; see Client.call.

        alone: with no other call at its replica.
        """
        async with self.gate.permit(call.choices, kin, alone=alone) as replica:
            self.budget.count_call()
            company = Company(replica)
            async with aclosing(self.client.call(replica, call)) as batches:
                async for batch in batches:
                    company.spoke()
                    if isinstance(batch[-1], LegEnded) and company.may_have_interrupted:
                        batch[-1] = LegEnded(call.leg, beside=True)
                    yield batch

    async def answers(self) -> bool:
        """Whether any replica answers at all, be it with an error; the built-in engine, whether its model is loaded."""
        if self.name == ENGINE_UPSTREAM:
            return bool(await self.document("/health", LIST_SECONDS))
        for replica in self.gate.replicas:
            try:
                await self._get_models(replica)
            except ForwardError:
                continue
            return True
        return False

    async def document(self, target: str, seconds: float) -> bytes:
        """A small document of the first replica, such as `/metrics`; empty where it does not come."""
        replica = self.gate.replicas[0]
        headers = upward(_NO_HEADERS, self.settings.api_key)
        try:
            status, body = await fetch(self.client, replica, target, headers, seconds=seconds, limit=LIST_BYTES)
        except ForwardError:
            return b""
        return body if status == 200 else b""

    async def _fetch_models(self) -> tuple[int, bytes] | None:
        """The list of the first replica that gives it, of those that have not said themselves what they serve."""
        last: tuple[int, bytes] | None = None
        for replica in self.gate.replicas:
            if replica.models is not None:
                continue
            try:
                last = await self._get_models(replica)
            except ForwardError:
                continue
            if last[0] == 200:
                break
        return last

    async def _get_models(self, replica: Replica) -> tuple[int, bytes]:
        headers = upward(_NO_HEADERS, self.settings.api_key)
        headers["Accept-Encoding"] = "identity"
        return await fetch(self.client, replica, "/v1/models", headers, seconds=LIST_SECONDS, limit=LIST_BYTES)


class Upstreams:
    """All upstreams of a configuration, in the file's order; the built-in engine first."""

    def __init__(self, config: Config, engine_socket: Path | None) -> None:
        self._sessions = Sessions()
        self._addresses: Mapping[str, Sequence[str]] = {}
        self._guests: dict[str, Guests] = {}
        self.names = Names(self._host_names, self._resolved, resolve)
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
                upstream = Upstream(settings, self._sessions)
            elif upstream.settings != settings:
                upstream.reconfigure(settings)
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
        """Resolve host names again and again while the block runs."""
        async with asyncio.TaskGroup() as beside:
            watching = beside.create_task(self.names.run())
            try:
                yield
            finally:
                watching.cancel()

    def take_members(self, snapshot: Snapshot) -> None:
        """Take what was said over the admin port of all upstreams; what was said before and is not in it is over."""
        self._guests = {name: Guests.read(told) for name, told in snapshot.items()}
        self._take()

    def _resolved(self, addresses: Mapping[str, Sequence[str]]) -> None:
        self._addresses = addresses
        self._take()

    def _take(self) -> None:
        for upstream in self.all:
            upstream.take(self._addresses, self._guests.get(upstream.name, NOBODY))

    def _host_names(self) -> list[str]:
        replicas = [replica for upstream in self.all for replica in upstream.settings.replicas]
        return [replica.name for replica in replicas if isinstance(replica, DnsName)]

    @property
    def _only(self) -> Upstream | None:
        """The one upstream that there is, where nobody configured its models."""
        return self.all[0] if len(self.all) == 1 and not self.all[0].models.configured else None

    async def route(self, model: str) -> tuple[Upstream, ModelName]:
        """The upstream for a model: the first that has it, else the first whose list cannot be read.

        An upstream that is the only one, and whose models nobody configured, is left to say what it does not have.
        Raises ApiError 404 when there is none.
        """
        everyone, only = self.all, self._only
        for upstream in everyone:
            if (name := await upstream.models.find(model)) is not None:
                return upstream, name
        for upstream in everyone:
            if upstream.models.takes_any() or (upstream is only and upstream.may_serve(model)):
                return upstream, ModelName(model)
        raise model_not_found(model)

    async def unnamed(self) -> str | None:
        """The model of a request that names none: the only one that the only upstream lists."""
        only = self._only
        listed = [] if only is None else [*await only.models.entries()]
        return listed[0] if len(listed) == 1 else None

    async def close(self) -> None:
        """Close all connections."""
        await self._sessions.close()


def _parallel(settings: Settings) -> int | None:
    return None if settings.parallel == "auto" else settings.parallel


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
