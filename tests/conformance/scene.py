"""A client, the gateway and the server behind it, all on real sockets, in one of the settings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import httpx

from tests.conformance.reading import Reading, Whole, read_stream
from tests.conformance.settings import Setting
from tests.fakes.behaviour import Behaviour, said
from tests.fakes.upstream import FakeUpstream, Seen
from tests.gateway.conftest import CHAT, Gateway, body, envelope

COMPLETIONS = "/v1/completions"
SEED = 42
"""Every request carries this seed. So choice i says `said(SEED + i)`, whichever call brings it."""


class Stage(ABC):
    """The setup of a row's test, as the client sees it. The gateway starts with the first request, or with `start`.

    n: number of choices that the client requests.
    """

    def __init__(self, setting: Setting, begin: Callable[..., Any]) -> None:
        self.setting = setting
        self.n = setting.n
        self._begin = begin
        self._gateway: Gateway | None = None

    @abstractmethod
    async def start(self, *, config: dict[str, Any] | None = None, **settings: Any) -> Gateway:
        """Start the gateway: keywords are the upstream's settings, `config` holds other sections."""

    async def gateway(self) -> Gateway:
        """The gateway; it is started if necessary."""
        return self._gateway or await self.start()

    def fields(self, path: str = CHAT, **fields: Any) -> dict[str, Any]:
        """The body of a request for n choices; `n=None` or `seed=None` leaves the field out."""
        asked = {"seed": SEED, **({} if self.n == 1 else {"n": self.n}), **fields}
        return body(path, **{name: value for name, value in asked.items() if value is not None})

    async def send(self, path: str = CHAT, *, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
        """Send a request, and return the answer as it is."""
        gateway = await self.gateway()
        return await gateway.post(self.fields(path, **fields), path, headers=headers or {})

    async def whole(self, path: str = CHAT, **fields: Any) -> Whole:
        """Request a JSON answer, which must be successful."""
        answer = await self.send(path, **fields)
        assert answer.status_code == 200, answer.text
        return Whole(answer.content, choices=self._choices(path, fields), chat=path == CHAT)

    async def stream(self, path: str = CHAT, **fields: Any) -> Reading:
        """Request a stream, which must satisfy the strict reader; it may end with an error event."""
        answer = await self.send(path, stream=True, **fields)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"].startswith("text/event-stream")
        options = fields.get("stream_options") or {}
        return read_stream(
            answer.content,
            choices=self._choices(path, fields),
            chat=path == CHAT,
            include_usage=bool(options.get("include_usage")),
            continuous=bool(options.get("continuous_usage_stats")),
            relayed=answer.headers["x-nproxy-mode"] == "relay",
        )

    async def either(self, stream: bool, path: str = CHAT, **fields: Any) -> Reading | Whole:
        """Make a request in one of the two forms."""
        return await (self.stream(path, **fields) if stream else self.whole(path, **fields))

    async def refused(self, status: int, path: str = CHAT, **fields: Any) -> dict[str, Any]:
        """Make a request that is answered with this status; return the error."""
        answer = await self.send(path, **fields)
        assert answer.status_code == status, answer.text
        return envelope(answer)

    def _choices(self, path: str, fields: dict[str, Any]) -> int:
        n = fields.get("n_cmpl") or fields.get("n", self.n) or 1
        prompt = fields.get("prompt") if path == COMPLETIONS else None
        listed = isinstance(prompt, list) and isinstance(prompt[0], str | list)
        return int(n) * (len(prompt) if listed and isinstance(prompt, list) else 1)


class Scene(Stage):
    """A stage with a scripted upstream. legs: how many calls n choices take if nothing fails."""

    def __init__(self, setting: Setting, upstream: FakeUpstream, begin: Callable[..., Any]) -> None:
        super().__init__(setting, begin)
        self.upstream = upstream
        self.legs = 1 if setting.native else setting.n
        self._by_choice: dict[int, Behaviour] = {}
        self.does()

    async def start(self, *, config: dict[str, Any] | None = None, **settings: Any) -> Gateway:
        """Start the gateway: keywords are the upstream's settings, `config` holds other sections."""
        mode = "native" if self.setting.native else "fanout"
        self._gateway = await self._begin(config=config, **{"n": mode, **settings})
        return await self.gateway()

    # ---- the upstream

    def does(self, **fields: Any) -> Behaviour:
        """Set how all calls are answered."""
        self.upstream.behaviour = self.behaviour(**fields)
        return self.upstream.behaviour

    def choice_does(self, index: int, **fields: Any) -> Behaviour:
        """Set how the call is answered that brings this choice; if there is only one call, that one."""
        index = 0 if self.legs == 1 else index
        self._by_choice[index] = self.behaviour(**fields)
        self.upstream.choose = self._chosen
        return self._by_choice[index]

    def first_call_does(self, **fields: Any) -> None:
        """Set how the next call is answered."""
        self.upstream.script(self.behaviour(**fields))

    def behaviour(self, **fields: Any) -> Behaviour:
        """How a server of this setting answers."""
        return Behaviour(**{"n": "native" if self.setting.native else "ignore", **fields})

    def _chosen(self, call: Seen) -> Behaviour | None:
        return self._by_choice.get(call.body["seed"] - SEED)

    @property
    def calls(self) -> list[Seen]:
        return self.upstream.calls

    @property
    def made_again(self) -> Seen:
        """The one call that was made a second time."""
        (again,) = (call for call in self.calls if call.headers["x-request-id"].endswith("-r1"))
        return again

    @property
    def said(self) -> dict[int, str]:
        """What the choices say if the upstream does nothing special."""
        return {index: said(SEED + index) for index in range(self.n)}

    @property
    def stopped(self) -> dict[int, str]:
        return dict.fromkeys(range(self.n), "stop")

    async def anomalies(self, kind: str) -> float:
        """How often this anomaly was counted."""
        return await (await self.gateway()).metric(f'nproxy_anomalies_total{{kind="{kind}",upstream="fake"}}')
