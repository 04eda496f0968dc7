"""An upstream at work: its replicas behind one gate, its abilities, its models, its retry budget."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from pathlib import Path

from pydantic import SecretStr

from nproxy.choices.events import Event, LegEnded
from nproxy.config import ENGINE_UPSTREAM, Config, DnsName, Timeouts
from nproxy.config import Upstream as Settings
from nproxy.openai.errors import model_not_found
from nproxy.upstreams.capabilities import Capabilities
from nproxy.upstreams.client import Call, Client
from nproxy.upstreams.company import Company
from nproxy.upstreams.forward import ForwardError, fetch
from nproxy.upstreams.gate import Gate
from nproxy.upstreams.headers import upward
from nproxy.upstreams.kin import Kin
from nproxy.upstreams.models import ModelList, ModelName
from nproxy.upstreams.replicas import Replica
from nproxy.upstreams.retry_budget import RetryBudget
from nproxy.upstreams.sessions import Sessions

LIST_SECONDS = 3.0
LIST_BYTES = 4 << 20
_NO_HEADERS: Mapping[str, str] = {}

_TEACHING = frozenset({"replicas", "models", "n", "wire", "parallel", "seed", "prefix_cache", "usage", "prompts"})
"""Settings with which an upstream may be another server, or may be asked otherwise."""


class Upstream:
    """One configured upstream. Its parts are public: the driver plans by `capabilities` and retries by `budget`."""

    def __init__(self, settings: Settings, sessions: Sessions) -> None:
        self.settings = settings
        self.name = settings.name
        self._sessions = sessions
        self.client = Client(sessions, settings.timeouts, settings.name)
        self.gate = Gate(_fixed(settings), _parallel(settings))
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
        self.gate.replace(_fixed(settings) if "replicas" in changed else self.gate.replicas)

    def _capabilities(self) -> Capabilities:
        return Capabilities(self.settings, lambda: len(self.gate.replicas))

    def _models(self) -> ModelList:
        models = self.settings.models
        return ModelList(None if models == "auto" else models, self._fetch_models)

    @property
    def timeouts(self) -> Timeouts:
        return self.settings.timeouts

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
        last: tuple[int, bytes] | None = None
        for replica in self.gate.replicas:
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
        self._engine = () if engine_socket is None else (_engine(engine_socket),)
        self.by_name: dict[str, Upstream] = {}
        self.reconfigure(config)

    def reconfigure(self, config: Config) -> None:
        """Take the upstreams of another configuration.

        Those whose settings stay are left alone, new ones are made; those that are gone get no new requests, and end
        when the calls that hold them have ended.
        """
        known, self.by_name = self.by_name, {}
        for settings in (*self._engine, *config.upstreams):
            upstream = known.get(settings.name)
            if upstream is None:
                upstream = Upstream(settings, self._sessions)
            elif upstream.settings != settings:
                upstream.reconfigure(settings)
            self.by_name[settings.name] = upstream
        self.all = tuple(self.by_name.values())

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
            if upstream.models.takes_any() or upstream is only:
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


def _fixed(settings: Settings) -> list[Replica]:
    """The replicas whose addresses the configuration names."""
    return [Replica.from_config(replica) for replica in settings.replicas if not isinstance(replica, DnsName)]


def _parallel(settings: Settings) -> int | None:
    return None if settings.parallel == "auto" else settings.parallel


def _engine(socket: Path) -> Settings:
    """The built-in engine as an upstream: native `n`, an exact wire, and no hurry while it computes.

    It sees the clients' keys, behind which it shares no computed prompts; nobody else can reach its socket.
    """
    return Settings.model_validate(
        {
            "name": ENGINE_UPSTREAM,
            "replicas": [f"unix:{socket}"],
            "n": "native",
            "wire": "exact",
            "timeouts": Timeouts(first_event=600, idle=300, response=None),
        }
    )
