"""One of two real servers is killed in mid-stream, or stopped under load: nproxy's clients do not notice.

`transformers serve` computes one call after the other, greedily. The built-in engine computes all choices at once,
drawn with seeds. Both compute in fp32, in which a text depends neither on the rest of the batch nor on how much of it
was given as a prompt.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bench.failover.replicas import MODEL, engine
from tests.system.fleet import Fleet, Kind
from tests.system.transformers_serve import transformers_serve
from tests.waiting import until

pytestmark = [pytest.mark.model, pytest.mark.timeout(900)]

PROMPT = "Once upon a time there was a lighthouse keeper who"


@pytest.fixture
def transformers(smollm2_folder: Path) -> Kind:
    return Kind(
        start=lambda log: transformers_serve(smollm2_folder, log=log, dtype="float32"),
        upstream={"models": [str(smollm2_folder)], "n": "fanout", "prompts": "one"},
        fields={"model": str(smollm2_folder), "prompt": PROMPT, "max_tokens": 16},
        streaming=2,
    )


@pytest.fixture
def built_in() -> Kind:
    return Kind(
        start=engine,
        upstream={"models": [MODEL], "n": "native"},
        fields={"model": MODEL, "prompt": PROMPT, "max_tokens": 64, "ignore_eos": True, "seed": 7, "temperature": 1.0},
        streaming=8,
    )


@pytest.fixture(params=["transformers", "built_in"])
def kind(request: pytest.FixtureRequest) -> Kind:
    given: Kind = request.getfixturevalue(request.param)
    return given


async def killed(fleet: Fleet, how: str) -> None:
    """Ask for eight choices, once undisturbed and once with a server killed in mid-stream: both answers are equal."""
    undisturbed = await fleet.whole(8)
    victim = None
    async for reading in fleet.stream(8):
        if victim is None and fleet.midway(reading):
            victim = fleet.at_work()
            assert victim is not None
            fleet.servers[victim].kill()
    assert victim is not None
    assert reading.texts == undisturbed.texts
    assert reading.finishes == undisturbed.finishes
    assert reading.usage == undisturbed.usage
    assert fleet.resumed(how) >= 1


async def test_killed_and_replayed(kind: Kind, tmp_path: Path) -> None:
    with Fleet.started(kind, tmp_path, resume="replay", retries={"per_leg": 3}) as fleet:
        await killed(fleet, "replay")


async def test_killed_and_continued(transformers: Kind, tmp_path: Path) -> None:
    with Fleet.started(transformers, tmp_path, resume="continue", retries={"per_leg": 3}) as fleet:
        await killed(fleet, "continue")


async def test_stopped_and_passed_over_until_it_goes_on(kind: Kind, tmp_path: Path) -> None:
    """A stopped server still accepts connections, but never answers."""
    asked = {"max_tokens": 8}
    with Fleet.started(kind, tmp_path, resume="replay", retries={"per_leg": 3}) as fleet:
        expected = (await fleet.whole(2, **asked)).texts
        over = asyncio.Event()

        async def load() -> None:
            while not over.is_set():
                assert (await fleet.whole(2, **asked)).texts == expected

        async with asyncio.TaskGroup() as clients:
            for _ in range(3):
                clients.create_task(load())
            await until(fleet.at_work, 60)
            victim = fleet.at_work()
            assert victim is not None
            with fleet.stopped(victim):
                await until(lambda: not fleet.replicas()[victim]["up"], 60)
                for _ in range(3):
                    assert (await fleet.whole(2, **asked)).texts == expected
                await until(lambda: fleet.replicas()[victim]["legs"] == 0, 60)
            await until(lambda: fleet.replicas()[victim]["up"], 60)
            await until(lambda: fleet.replicas()[victim]["legs"] > 0, 60)
            over.set()
