"""Counts the calls that a gateway makes. Unlike its time, this number does not depend on how busy the machine is."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import FrameType

import uvloop

from nproxy.config import Config
from nproxy.gateway.serve import running
from nproxy.telemetry import logs
from tests.budgets.player import Player

_CALLS = ("call", "c_call")


class Calls:
    """Counts calls of Python functions, and calls of C functions by Python, in the thread that counts."""

    def __init__(self) -> None:
        self.made = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count in this thread, without collecting garbage: Hypothesis times collections once it has run a property."""
        gc.disable()
        sys.setprofile(self._count)
        try:
            yield
        finally:
            sys.setprofile(None)
            gc.enable()

    def _count(self, frame: FrameType, event: str, arg: object) -> None:
        self.made += event in _CALLS


def calls_of(play: Callable[[Player, Calls], float]) -> float:
    """Run a gateway like `nproxy serve`, with its log discarded, and return what `play` returns.

    play: uses the gateway from another thread, and reads the number of calls when it needs it.
    """
    return uvloop.run(_calls_of(play))


@asynccontextmanager
async def playing() -> AsyncIterator[Player]:
    """Run a gateway like `nproxy serve`, with a player at both ends, which is used in another thread."""
    player = Player()
    upstream = {"name": "up", "replicas": [player.url], "models": ["m"], "n": "fanout"}
    config = Config.model_validate({"listen": {"port": 0}, "engine": None, "upstreams": [upstream]})
    async with running(config) as gateway:
        player.connect(int(gateway.url.rpartition(":")[2]))
        try:
            yield player
        finally:
            player.close()


async def _calls_of(play: Callable[[Player, Calls], float]) -> float:
    calls = Calls()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    logs.configure("info", "json", nowhere)
    try:
        async with playing() as player:
            with calls.counted():
                return await asyncio.to_thread(play, player, calls)
    finally:
        os.close(nowhere)
