"""Serves the document. It is made at the first request under a configuration, and kept until that changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from nproxy.config import Config
from nproxy.gateway.exchange import Exchange
from nproxy.gateway.openapi.fragments import Fragment
from nproxy.gateway.representation import Representation, respond_with
from nproxy.openai.jsonvalue import dumps


class OpenApi:
    """The document of one port. write: makes it from a configuration."""

    __slots__ = ("_kept", "_write")

    def __init__(self, write: Callable[[Config], Fragment]) -> None:
        self._write = write
        self._kept: tuple[Config, Representation] | None = None

    async def serve(self, exchange: Exchange, config: Config) -> None:
        """Answer with the document of this configuration, or with 304 if the client has it. Raises ClientLeft."""
        if self._kept is None or self._kept[0] is not config:
            self._kept = config, await asyncio.to_thread(self._written, config)
        await respond_with(exchange, self._kept[1])

    def _written(self, config: Config) -> Representation:
        return Representation.of(dumps(self._write(config)), "application/json")
