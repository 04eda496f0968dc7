"""The core in its own process, and its two ends of the channel: answers, failures, and no orphan."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import subprocess
import sys
import time

import psutil
import pytest

from engine.channel import CoreClient
from engine.config import EngineConfig
from engine.errors import CoreFailed
from engine.messages import Abort, Add, Sampling, StepDone, TokenDrawn, pack, unpack
from tests.fakes.runner import expected
from tests.real.metrics import wait_for
from tests.real.processes import ended

LOADER = "tests.fakes.runner:load"
PROMPT = tuple(range(10, 31))


def config(model: str = "hash") -> EngineConfig:
    return EngineConfig(model, max_batch_tokens=64, max_sequences=16, block_size=4)


def add(group: int, n: int, new: int) -> Add:
    return Add.alike(group, PROMPT, n, 3, new, Sampling(), frozenset())


async def until_idle(client: CoreClient) -> list[StepDone]:
    steps = []
    async for done in client:
        steps.append(done)
        if not done.stats.running + done.stats.waiting:
            break
    return steps


async def test_choices_come_back_from_the_core_step_by_step() -> None:
    client = await CoreClient.start(config(), LOADER)
    assert (client.ready.vocab_size, client.ready.block_size) == (1000, 4)
    client.add(add(1, 3, 5))
    steps = await until_idle(client)
    assert [len(done.tokens) for done in steps] == [3] * 5
    for choice in range(3):
        tokens = [drawn.token for done in steps for drawn in done.tokens if drawn.choice == choice]
        assert tokens == expected(PROMPT, 3 + choice, 5)
    assert {drawn.finish for drawn in steps[-1].tokens} == {"length"}
    # The core sleeps now; a new message wakes it.
    client.add(add(2, 1, 2))
    assert [drawn.group for done in await until_idle(client) for drawn in done.tokens] == [2, 2]
    await client.close()


async def test_a_core_whose_steps_overlap_sleeps_when_none_is_under_way() -> None:
    client = await CoreClient.start(config(), "tests.fakes.late_runner:load")
    tokens = expected(PROMPT, 3, 5)
    # One step each: the first is only submitted, and none is there for nothing but waiting.
    client.add(Add.alike(1, PROMPT, 1, 3, 9, Sampling(), frozenset({tokens[-1]})))
    steps = await until_idle(client)
    assert [[drawn.token for drawn in done.tokens] for done in steps] == [[], *([token] for token in tokens)]
    in_vain = await anext(client)  # drawn behind the stop token
    assert (in_vain.tokens, in_vain.stats.tokens_drawn, client.silence) == ((), 5, 0)
    client.add(add(2, 1, 2))
    assert [len(done.tokens) for done in await until_idle(client)] == [0, 1, 1]
    await client.close()


@pytest.mark.parametrize(
    ("given", "rounds"),
    [
        ({}, "10000"),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, None),
        ({"GOMP_SPINCOUNT": "100", "THP_MEM_ALLOC_ENABLE": "0"}, "100"),
    ],
)
async def test_threads_spin_for_a_moment_and_pages_are_large_unless_the_operator_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], rounds: str | None
) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "THP_MEM_ALLOC_ENABLE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    client = await CoreClient.start(config(), LOADER)
    environment = psutil.Process(client.pid).environ()
    assert environment.get("GOMP_SPINCOUNT") == rounds
    assert environment.get("OMP_WAIT_POLICY") == given.get("OMP_WAIT_POLICY")
    assert environment.get("THP_MEM_ALLOC_ENABLE") == given.get("THP_MEM_ALLOC_ENABLE", "1")
    await client.close()


async def test_an_abort_is_answered_with_the_counts() -> None:
    client = await CoreClient.start(config(), LOADER)
    client.add(add(1, 4, 400))
    await anext(client)
    client.abort(Abort(1))
    assert (await until_idle(client))[-1].stats.blocks_used == 0
    await client.close()


async def test_close_ends_the_process_and_the_iteration() -> None:
    client = await CoreClient.start(config(), LOADER)
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(until_idle(client))
        await asyncio.sleep(0)
        await client.close()
    assert waiting.result() == []
    assert not psutil.pid_exists(client.pid)
    await client.close()
    client.add(add(1, 1, 1))  # nobody is there: nothing happens


async def test_close_ends_the_process_in_the_middle_of_a_step() -> None:
    client = await CoreClient.start(config("slow"), LOADER)
    client.add(add(1, 1, 1))
    await client.close()
    assert not psutil.pid_exists(client.pid)


async def test_silence_is_the_time_since_the_core_owes_a_step() -> None:
    client = await CoreClient.start(config("stuck"), LOADER)
    assert client.silence == 0
    client.add(add(1, 1, 9))
    await anext(client)
    await anext(client)  # two steps, and more to come
    began = time.monotonic()
    while client.silence < 0.1:
        assert time.monotonic() - began < 5
        await asyncio.sleep(0.01)
    before = client.silence
    client.abort(Abort(1))
    assert client.silence >= before  # asking for more does not make it shorter
    await client.close()


async def test_a_core_that_has_done_everything_owes_nothing() -> None:
    client = await CoreClient.start(config(), LOADER)
    client.add(add(1, 2, 5))
    await until_idle(client)
    assert client.silence == 0
    client.abort(Abort(1))  # of nobody any more, and answered all the same
    assert client.silence > 0
    assert (await anext(client)).taken == 2
    assert client.silence == 0
    await client.close()


async def test_a_model_that_does_not_load_is_told() -> None:
    with pytest.raises(CoreFailed, match="there is no model of this name"):
        await CoreClient.start(config("missing"), LOADER)


async def test_why_a_model_does_not_load_is_told_however_late_it_is_asked_for() -> None:
    """A server that reads a long vocabulary looks only when the core has ended."""
    client = await CoreClient.launch(config("missing"), LOADER)
    core = psutil.Process(client.pid)
    while not ended(core):
        time.sleep(0.01)  # the event loop stands still, as while the vocabulary is read
    with pytest.raises(CoreFailed, match="there is no model of this name"):
        await client.loaded(None)


async def test_a_loader_that_does_not_exist_is_told() -> None:
    with pytest.raises(CoreFailed, match=r"ModuleNotFoundError: No module named 'engine\.nowhere'"):
        await CoreClient.start(config(), "engine.nowhere:load")


async def test_a_core_whose_steps_all_fail_says_so_and_ends() -> None:
    client = await CoreClient.start(config("broken"), LOADER)
    for group in range(2):
        client.add(add(group, 1, 1))
        assert [failed.group for failed in (await anext(client)).failed] == [group]
    client.add(add(2, 1, 1))
    with pytest.raises(CoreFailed, match="3 steps in a row failed, the last with MemoryError"):
        await anext(client)
    await client.close()


async def test_a_killed_core_is_noticed() -> None:
    client = await CoreClient.start(config("slow"), LOADER)
    client.add(add(1, 1, 1))
    os.kill(client.pid, signal.SIGKILL)
    with pytest.raises(CoreFailed, match="was ended by signal 9"):
        await anext(client)
    client.abort(Abort(1))
    await client.close()


async def test_a_cancelled_start_leaves_no_process() -> None:
    before = set(psutil.Process().children())
    starting = asyncio.ensure_future(CoreClient.start(config(), LOADER))
    while set(psutil.Process().children()) == before:
        await asyncio.sleep(0.001)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert set(psutil.Process().children()) == before


KILLED_SERVER = """
import asyncio, time
from tests.engine import test_worker as here

async def main():
    starting = asyncio.ensure_future(here.CoreClient.start(here.config({model!r}), here.LOADER))
    if {model!r} == "importing":
        await asyncio.sleep(60)
    client = await starting
    {then}
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("model", "then"),
    [
        ("hash", "here.say(client.pid)"),
        ("slow", "client.add(here.add(1, 1, 1)); here.say(client.pid)"),
        ("importing", ""),
        # the core waits for work while what it said lies unread
        ("hash", "client.add(here.add(1, 1, 1)); time.sleep(0.3); here.say(client.pid); time.sleep(60)"),
        # the core waits for the rest of a message
        ("hash", "client._writer.write(here.pack(here.add(1, 1, 1))[:-9]); here.say(client.pid)"),
    ],
    ids=["idle", "in a step", "importing torch", "with unread answers", "with half a message"],
)
def test_the_core_dies_with_its_server(model: str, then: str) -> None:
    """A server that is killed leaves no core behind, whatever the core is doing."""
    code = KILLED_SERVER.format(model=model, then=then)
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        core = psutil.Process(int(server.stderr.readline()))
        server.kill()
        try:
            wait_for(lambda: ended(core), seconds=2.0, what="no orphan")
        finally:
            if not ended(core):
                core.kill()


def say(pid: int) -> None:
    """Tell the test which process is the core."""
    print(pid, file=sys.stderr, flush=True)


async def test_close_takes_no_time_when_the_core_has_said_what_nobody_read() -> None:
    client = await CoreClient.start(config("broken"), LOADER)
    client.add(add(1, 1, 1))
    time.sleep(0.3)  # on purpose without giving way to the loop, which would read
    began = time.monotonic()
    await client.close()
    assert time.monotonic() - began < 2


def test_messages_survive_the_wire() -> None:
    done = (TokenDrawn(1, 2, 3), TokenDrawn(1, 2, 4, "stop"))
    assert pickle.loads(pickle.dumps(done)) == done
    frame = pack(add(1, 2, 3))
    assert unpack(frame[4:]) == add(1, 2, 3)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
