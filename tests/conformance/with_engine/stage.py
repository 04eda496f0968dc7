"""The gateway before a real engine, whose model is a few kilobytes of noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.conformance.scene import COMPLETIONS, Stage
from tests.conformance.settings import ENGINE
from tests.fakes import tiny_chat
from tests.gateway.conftest import CHAT, Gateway
from tests.real.metrics import metric
from tests.real.processes import Server

MODEL = "tiny"
WIDEST, QUEUE = 16, 16
"""Choices that the engine runs at once, and how many may wait."""

LETTERS = tiny_chat.tokens("abcdef ")
"""Tokens to which an answer is held that is to be a text, and no noise."""


class EngineStage(Stage):
    """A stage with the engine behind: what it says is its own, and the same for the same seed.

    A request names its model, and 8 tokens where it says nothing else.
    """

    def __init__(self, engine: Server, begin: Callable[..., Any]) -> None:
        super().__init__(ENGINE, begin)
        self.engine = engine

    async def start(self, *, config: dict[str, Any] | None = None, **settings: Any) -> Gateway:
        """Start the gateway: keywords are the upstream's settings, `config` further parts."""
        upstream = {"name": "tiny", "replicas": [self.engine.url], "n": "native", "wire": "exact", **settings}
        self._gateway = await self._begin({"upstreams": [upstream], **(config or {})})
        return await self.gateway()

    def fields(self, path: str = CHAT, **fields: Any) -> dict[str, Any]:
        """The body of a request for n choices; None leaves a field out."""
        limit = {} if "max_completion_tokens" in fields else {"max_tokens": 8}
        return super().fields(path, **{"model": MODEL, **limit, **fields})

    def counted(self, name: str, **labels: str) -> float:
        """One of the engine's own metrics."""
        return metric(self.engine.url, f"nproxy_engine_{name}", **labels)


__all__ = ["CHAT", "COMPLETIONS", "LETTERS", "MODEL", "QUEUE", "WIDEST", "EngineStage"]
