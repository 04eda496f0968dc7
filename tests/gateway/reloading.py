"""A gateway that follows a file of settings, and what is done to it while streams run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import yaml

from nproxy.config import Reading, Source
from nproxy.gateway.reload import Reload, Reloader
from nproxy.gateway.serve import running, use
from tests.clients import plain_client
from tests.fakes.behaviour import MODEL, said
from tests.gateway.conftest import CHAT, Gateway, Stream

ENVIRON: Mapping[str, str] = {}


class Following(Gateway):
    """A running gateway, its file, and what reads that again."""

    file: Path
    reading: Reading
    reloader: Reloader

    async def reload(self, settings: dict[str, Any] | str) -> Reload:
        """Write other settings into the file and have them read."""
        write(self.file, settings)
        return await self.reloader.reload()


def write(file: Path, settings: dict[str, Any] | str) -> None:
    file.write_text(settings if isinstance(settings, str) else yaml.safe_dump(settings))


@asynccontextmanager
async def following(file: Path, settings: dict[str, Any], poll_seconds: float = 0.01) -> AsyncIterator[Following]:
    """Run a gateway with the settings in this file; `reloader.run()` is left to the test."""
    write(file, {"listen": {"port": 0}, **settings})
    reading = Source(file, ENVIRON).read()
    async with (
        running(reading.checked(), reading.keys) as gateway,
        plain_client(gateway.url, timeout=60, limits=httpx.Limits()) as client,
    ):
        follower = Following(gateway, client)
        follower.file, follower.reading = file, reading
        follower.reloader = Reloader(reading, partial(use, gateway.app), gateway.app.history.add, poll_seconds)
        yield follower


@dataclass
class Tally:
    """What became of the streams: how many were whole, and what was wrong with the others."""

    whole: int = 0
    wrong: list[str] = field(default_factory=list)

    def add(self, wrong: str | None) -> None:
        if wrong is None:
            self.whole += 1
        else:
            self.wrong.append(wrong)


async def under_streams(
    url: str, streams: int, times: int, act: Callable[[int], Awaitable[None]], *, n: int = 2, first_seed: int = 0
) -> Tally:
    """Do something so many times while so many streams are read, each followed by another; every byte is checked.

    The upstream behind must be a FakeUpstream that answers as it does by itself, with some pause between chunks.
    """
    tally, over = Tally(), asyncio.Event()
    async with plain_client(url, timeout=60, limits=httpx.Limits()) as client:

        async def read(number: int) -> None:
            while not over.is_set():
                tally.add(await wrong_with_a_stream(client, seed=first_seed + 1000 * number, n=n))

        async with asyncio.TaskGroup() as readers:
            for number in range(streams):
                readers.create_task(read(number))
            for time in range(times):
                await act(time)
            over.set()
    return tally


async def wrong_with_a_stream(client: httpx.AsyncClient, *, seed: int, n: int) -> str | None:
    """Ask for a stream and read it to its end; what is wrong with it, None where every choice is as it must be."""
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "n": n, "seed": seed, "stream": True}
    try:
        answer = await client.post(CHAT, json=asked)
    except httpx.HTTPError as error:
        return f"{type(error).__name__}: {error}"
    stream = Stream(answer.status_code, answer.headers, answer.content)
    expected = {index: said(seed + index) for index in range(n)}
    if stream.status != 200 or not stream.done or stream.texts != expected:
        return f"{stream.status} {stream.raw[-300:]!r}"
    return None
