"""Runs a gateway, its engine and faulty servers through a story that moves every metric, scraped at named moments."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from nproxy.config import Source
from nproxy.gateway.app import App
from nproxy.gateway.reload import Reloader
from nproxy.gateway.serve import running, use
from nproxy.telemetry import logs
from nproxy.upstreams.registrar import Registrar
from tests.clients import plain_client
from tests.fakes import tiny_chat
from tests.fakes.upstream import MODEL, Behaviour, FakeUpstream
from tests.gateway.conftest import CHAT, body
from tests.real.processes import ROOT

Scrape = dict[tuple[str, frozenset[tuple[str, str]]], float]
"""Values by sample name and labels."""

Reload = Callable[[str | None], Awaitable[None]]

TINY = "tiny"
KEY, LIMITED = "key-of-ann", "key-of-bob"
POOL = ("--num-blocks", "40", "--max-sequences", "8", "--max-batch-tokens", "256")
"""Options for so few KV blocks that choices preempt each other."""
ENDLESS: dict[str, Any] = {"model": TINY, "ignore_eos": True, "max_tokens": 500, "stream": True}
OPENMETRICS = {"accept": "application/openmetrics-text"}


class Story:
    """The parts of the story, as methods; `at` holds a scrape for each moment."""

    def __init__(self, client: httpx.AsyncClient, odd: FakeUpstream) -> None:
        self.client = client
        self.odd = odd
        self.at: dict[str, Scrape] = {}

    async def scrape(self, moment: str) -> Scrape:
        answer = await self.client.get("/metrics", headers=OPENMETRICS)
        families = text_string_to_metric_families(answer.raise_for_status().text)  # type: ignore[no-untyped-call]
        samples = [sample for family in families for sample in family.samples]
        self.at[moment] = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
        return self.at[moment]

    async def until(self, moment: str, holds: Callable[[Scrape], bool]) -> None:
        """Scrape until the condition holds."""
        async with asyncio.timeout(60):
            while not holds(await self.scrape(moment)):
                await asyncio.sleep(0.01)

    async def ask(self, **fields: Any) -> httpx.Response:
        path = "/v1/completions" if "prompt" in fields else CHAT
        return await self.client.post(path, json=body(path, **fields))

    async def work(self) -> None:
        """Use both endpoints, whole and streamed; repeat a prompt; ask for more choices than the pool holds."""
        for fields in ({"n": 2}, {"n": 2}, {"prompt": "once upon a time", "n": 3, "stream": True}):
            assert (await self.ask(model=TINY, max_tokens=24, **fields)).status_code == 200
        crowd = {**ENDLESS, "max_tokens": 100, "n": 8}
        assert (await self.ask(**crowd)).text.endswith("data: [DONE]\n\n")
        await self.client.post("/v1/embeddings", json={"model": MODEL, "input": "x"})

    async def oddities(self) -> None:
        """Cause too few choices, a temporary refusal, and a stream that breaks off each time it is resumed."""
        assert (await self.ask(n=2)).status_code == 200
        self.odd.script(Behaviour(status=503))
        assert (await self.ask(n=1)).status_code == 200
        self.odd.behaviour = Behaviour(end_after=2, end="cut")
        assert "error" in (await self.ask(stream=True)).text
        self.odd.behaviour = Behaviour()

    async def hold(self) -> None:
        """Scrape with calls in flight and a request that waits for capacity."""
        held = asyncio.Event()
        self.odd.behaviour = Behaviour(hold=held)
        reading = asyncio.create_task(self.ask(**ENDLESS, n=2))
        asked = [asyncio.create_task(self.ask(n=6))]
        await self.odd.until(lambda: len(self.odd.open_calls) == 6, 30.0)
        asked.append(asyncio.create_task(self.ask(n=4)))
        forked = ("nproxy_engine_blocks_shared", frozenset[tuple[str, str]]())  # both choices run, and share the prompt
        await self.until("held", lambda now: bool(now[forked] and now["nproxy_queue_choices", frozenset()]))
        held.set()
        assert [answer.status_code for answer in await asyncio.gather(*asked)] == [200, 200]
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        self.odd.behaviour = Behaviour()

    async def fall_back(self) -> None:
        """Stop a server, use the fallback, and start the server again."""
        await self.odd.stop()
        for _ in range(2):  # opens the breaker
            assert (await self.ask(n=1)).headers["x-nproxy-upstream"] == "spare"
        await self.scrape("down")
        await self.odd.__aenter__()
        async with asyncio.timeout(60):
            while (await self.ask(n=1)).headers["x-nproxy-upstream"] != "odd":
                await asyncio.sleep(0.05)

    async def drain(self, app: App) -> None:
        """Drain a server, as the admin port does, and undrain it."""
        registrar = Registrar(app.upstreams.take_members)
        registrar.drain("odd", self.odd.url)
        await self.scrape("drained")
        registrar.undrain("odd", self.odd.url)

    async def refuse(self) -> None:
        """Exceed the rate of a key."""
        limited = {"authorization": f"Bearer {LIMITED}"}
        codes = [(await self.client.post(CHAT, json=body(), headers=limited)).status_code for _ in range(2)]
        assert codes == [200, 429]

    async def starve(self, app: App) -> None:
        """Set the memory limit so low that requests are refused; memory is only read from time to time."""
        app.admission.memory.limit = 1
        async with asyncio.timeout(60):
            while (await self.ask()).status_code != 503:
                await asyncio.sleep(0.05)
        app.admission.memory.limit = None

    async def lag(self) -> None:
        """Block the event loop."""
        loop = asyncio.get_running_loop()

        def late(now: Scrape) -> bool:
            loop.call_soon(time.sleep, 0.6)
            return now["nproxy_event_loop_lag_seconds", frozenset()] > 0

        await self.until("late", late)

    async def rest(self) -> None:
        """Wait until nothing is in flight, in the gateway and in the engine."""
        used = ("nproxy_engine_blocks", frozenset({("state", "used")}))
        await self.until("rest", lambda now: not now[used] and not now["nproxy_inflight_requests", frozenset()])


async def play(folder: Path) -> dict[str, Scrape]:
    """Play the story; return the scrapes of all moments."""
    async with FakeUpstream(models=[MODEL]) as spare, _stage(folder, spare) as (story, app, reload):
        await story.until("before", lambda now: ("nproxy_engine_steps_total", frozenset()) in now)
        await story.work()
        await story.oddities()
        await story.hold()
        await story.refuse()
        await story.starve(app)
        await reload("upstreams: what")
        await story.scrape("bad settings")
        await reload(None)
        await story.lag()
        with _deaf_log():
            await story.until("deaf", lambda now: now["nproxy_log_lines_dropped_total", frozenset()] > 0)
        await story.fall_back()
        await story.drain(app)
        await story.rest()
        return story.at


@asynccontextmanager
async def _stage(folder: Path, spare: FakeUpstream) -> AsyncIterator[tuple[Story, App, Reload]]:
    """Give the story, its gateway's app, and a function that reloads settings: None for the gateway's own."""
    file, socket = folder / "nproxy.yaml", folder / "e.sock"
    async with FakeUpstream(models=[MODEL]) as odd:
        settings = yaml.safe_dump(_settings(odd, spare, folder))
        file.write_text(settings)
        reading = Source(file, {}).read()
        with _engine(folder, socket):
            async with (
                running(reading.checked(), reading.keys, engine_socket=socket) as gateway,
                plain_client(gateway.url, timeout=60.0, headers={"authorization": f"Bearer {KEY}"}) as client,
            ):
                reloader = Reloader(reading, partial(use, gateway.app), gateway.app.history.add)

                async def reload(text: str | None) -> None:
                    file.write_text(f"{settings}# again\n" if text is None else text)
                    await reloader.reload()

                yield Story(client, odd), gateway.app, reload


def _settings(odd: FakeUpstream, spare: FakeUpstream, folder: Path) -> dict[str, Any]:
    hashed = {key: f"sha256:{hashlib.sha256(key.encode()).hexdigest()}" for key in (KEY, LIMITED)}
    keys = [{"name": "ann", "hash": hashed[KEY]}, {"name": "bob", "hash": hashed[LIMITED], "requests_per_minute": 1}]
    (folder / "keys.yaml").write_text(yaml.safe_dump({"keys": keys}))
    common = {"models": [MODEL], "health": {"interval": None}}
    return {
        "listen": {"port": 0},
        "engine": {"model": TINY},
        "auth": {"api_keys_file": "keys.yaml"},
        "limits": {"inflight_choices": 10, "per_key_choices": 10},
        "n_policy": {"max_n": 10},
        "upstreams": [
            {
                "name": "odd",
                "replicas": [odd.url],
                "resume": "replay",
                "breaker": {"in_a_row": 2, "open": 1},
                "retries": {"per_leg": 1, "budget": 1.0},
                "fallback": ["spare"],
                **common,
            },
            {"name": "spare", "replicas": [spare.url], "n": "fanout", **common},
        ],
    }


@contextmanager
def _engine(folder: Path, socket: Path) -> Iterator[None]:
    """Run `python -m engine` with the tiny model on a Unix socket; it may not answer yet."""
    model = tiny_chat.save(folder / "model")
    argv = [sys.executable, "-m", "engine", str(model), "--uds", str(socket), "--served-model-name", TINY]
    with (folder / "engine.log").open("wb") as log:
        child = subprocess.Popen(
            [*argv, "--dtype", "float32", *POOL],
            stdout=log,
            stderr=log,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    try:
        yield
    finally:
        child.terminate()
        child.wait(30)


@contextmanager
def _deaf_log() -> Iterator[None]:
    """Write logs to a pipe that is never read."""
    loggers = [logging.getLogger(name) for name in ("nproxy", "aiohttp")]
    before = [(logger.handlers[:], logger.propagate, logger.level) for logger in loggers]
    ours, theirs = os.pipe()
    os.close(ours)
    logs.configure("debug", "json", theirs)
    try:
        yield
    finally:
        for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
            logger.handlers[:], logger.propagate = handlers, propagate
            logger.setLevel(level)
        os.close(theirs)
