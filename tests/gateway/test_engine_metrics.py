"""The engine's part of /metrics: as it tells it, as it told it last, and whether it did."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from nproxy.config import Config
from nproxy.gateway.engine_metrics import KEPT_SECONDS, EngineMetrics
from nproxy.telemetry.collected import MaybeGauge
from nproxy.upstreams.upstreams import Upstreams
from nproxy.upstreams.via import Pseudonym

STEPS = "# TYPE nproxy_engine_steps_total counter\nnproxy_engine_steps_total %d\n"


@dataclass
class Engine:
    """answers: its status, and how many steps it tells. told, up: what the gateway makes of it. now: the time."""

    told: EngineMetrics
    up: MaybeGauge
    answers: dict[str, int]
    now: list[float]

    async def steps(self) -> float | None:
        family = (await self.told.report()).get("nproxy_engine_steps")
        return None if family is None else next(iter(family.samples.values()))


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    answers, now = {"status": 200, "steps": 7}, [0.0]

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(text=STEPS % answers["steps"], status=answers["status"])

    app = web.Application()
    app.router.add_get("/metrics", metrics)
    async with TestServer(app) as server:
        config = Config.model_validate({"upstreams": [{"name": "e", "replicas": [str(server.make_url("/v1"))]}]})
        upstreams = Upstreams(config, None, Pseudonym())
        up = MaybeGauge("up", "")
        yield Engine(EngineMetrics(upstreams.all[0], up, lambda: now[0]), up, answers, now)
        await upstreams.close()


async def test_what_it_tells(engine: Engine) -> None:
    assert engine.up.value == 0, "it has told nothing yet"
    assert await engine.steps() == 7
    assert engine.up.value == 1


async def test_its_last_word_stands_for_a_while(engine: Engine) -> None:
    await engine.steps()
    engine.answers["status"], engine.now[0] = 503, KEPT_SECONDS - 1
    assert (await engine.steps(), engine.up.value) == (7, 0)
    engine.answers |= {"status": 200, "steps": 9}
    assert (await engine.steps(), engine.up.value) == (9, 1)


async def test_it_does_not_stand_for_ever(engine: Engine) -> None:
    await engine.steps()
    engine.answers["status"], engine.now[0] = 503, KEPT_SECONDS
    assert (await engine.steps(), engine.up.value) == (None, 0)


async def test_one_that_never_answered(engine: Engine) -> None:
    engine.answers["status"] = 503
    assert (await engine.steps(), engine.up.value) == (None, 0)
