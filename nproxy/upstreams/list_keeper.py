"""Reads the model lists of upstreams beside the requests, which look at what is known.

A list is read when a request has looked at it and it is old, so that an idle gateway leaves its upstreams alone. The
list says how long a request may wait for it; see ModelList.patience.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol

from nproxy.upstreams.models import ListAnswer, ModelList


class Listed(Protocol):
    """An upstream, as its list is read."""

    @property
    def models(self) -> ModelList:
        """What is known of its list. Other settings bring another one."""
        ...

    async def list_models(self) -> ListAnswer:
        """Ask it for its list."""
        ...


class ListKeeper:
    """Reads the lists that are wanted.

    upstreams: returns the current ones; they may change. clock: a monotonic time in seconds.
    """

    def __init__(self, upstreams: Callable[[], Iterable[Listed]], clock: Callable[[], float] = time.monotonic) -> None:
        self._upstreams = upstreams
        self._clock = clock
        self._soon = asyncio.Event()
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Read lists when they are due, until cancelled. A slow one does not hold up the others."""
        async with asyncio.TaskGroup() as readings:
            while True:
                self._soon.clear()
                for upstream in self._upstreams():
                    if upstream.models.due:
                        upstream.models.began(self._clock())
                        readings.create_task(self._read(upstream, upstream.models))
                await self._soon.wait()

    def soon(self) -> None:
        """Start to read the lists that are due."""
        self._soon.set()

    def want(self, lists: Iterable[ModelList], *, lacking: bool = False) -> bool:
        """Have those of the lists read that are old; see ModelList.want. Returns whether any is to be read now."""
        now, wanted = self._clock(), False
        for one in lists:
            if one.want(now, lacking=lacking):
                wanted = True
        if wanted:
            self._soon.set()
        return wanted

    async def wait(self, patience: Callable[[], float]) -> None:
        """Wait for lists. patience: how many seconds in all it is worth; asked again whenever a reading has ended."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while (seconds := patience()) > loop.time() - began:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(began + seconds):
                    await self._news.wait()

    async def _read(self, upstream: Listed, models: ModelList) -> None:
        models.take(await upstream.list_models(), self._clock())
        news, self._news = self._news, asyncio.Event()
        news.set()
        if models.due:
            self._soon.set()
