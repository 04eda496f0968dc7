"""leave: clients disconnect at random moments and in every way; nothing of their requests remains."""

from __future__ import annotations

import asyncio
import random
from typing import get_args

from bench.load.ask import Ask, How
from bench.load.bar import Result
from bench.load.client import Client
from bench.load.stand import Gateway, Stand, Upstream, Usage, Watch, settings
from bench.load.tape import Tape

PACE, TOKENS = 20.0, 40
WIDEST = 8
GONE_SECONDS = 2.0
BACK_SECONDS = 15.0


async def run(stand: Stand, *, leavers: int, clients: int) -> Result:
    """Run the bar. leavers: requests whose client disconnects. clients: how many there are at once.

    Three quarters of the choices that they ask for are admitted, and half get capacity upstream, so that some clients
    leave while their requests wait, and some while their calls do.
    """
    upstream = await stand.upstream(PACE)
    asked = clients * (1 + WIDEST) // 2
    room = {"inflight_choices": max(128, 3 * asked // 4), "per_key_choices": max(128, 3 * asked // 4)}
    gateway = await stand.gateway(settings(f"{upstream.url}/v1", parallel=max(8, asked // 2), limits=room))
    tape, draw = Tape(), random.Random("leave")
    await _leave(gateway, tape, draw, leavers // 10, clients)  # what is created once is created before the baseline
    await gateway.wait_idle(BACK_SECONDS)
    files, tasks = await _held(gateway, upstream)
    watch = Watch(gateway)
    looking = asyncio.create_task(watch.look())
    await _leave(gateway, tape, draw, leavers, clients)
    looking.cancel()
    left = await gateway.wait_idle(GONE_SECONDS)
    open_calls = (await upstream.counts())["open"]
    files_after, tasks_after = await _back(gateway, upstream, files, tasks)
    counts = await upstream.counts()
    others = {kind: number for kind, number in tape.outcomes.items() if kind not in ("left", "ok")}
    figures = {
        "outcomes": dict(tape.outcomes),
        "details": dict(tape.details.most_common(5)),
        "upstream": counts,
        "in_flight_after": left,
        "files": [files, files_after],
        "tasks": [tasks, tasks_after],
        "gateway": {"most_rss_mib": watch.most, "cpu": round(watch.cpu, 3)},
    }
    holds = {
        f"0 upstream calls {GONE_SECONDS:.0f} s later": open_calls == 0,
        "requests, choices and legs in flight, and choices that wait, are 0": not any(left.values()),
        "open files are at their baseline": files_after <= files,
        "tasks are at their baseline": tasks_after <= tasks,
        "nobody who stayed was failed": not others,
    }
    line = (
        f"{tape.outcomes['left']:,} left, {counts['begun']:,} upstream calls begun; open files {files} before and "
        f"{files_after} after, tasks {tasks} and {tasks_after}"
    )
    return Result(line, figures, holds)


async def _leave(gateway: Gateway, tape: Tape, draw: random.Random, leavers: int, clients: int) -> None:
    todo = iter(range(leavers))

    async def one() -> None:
        client = Client("127.0.0.1", gateway.port, tape)
        for number in todo:
            moment = draw.choice((draw.uniform(0.0, 0.005), *[draw.uniform(0.0, 1.1 * TOKENS / PACE)] * 3))
            ways: tuple[How, ...] = get_args(How)
            n, stream = draw.randint(1, WIDEST), draw.random() < 0.8
            await client.ask(Ask(number * 10, n, TOKENS, stream=stream, leave=moment, how=draw.choice(ways)))
        client.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(one())


async def _held(gateway: Gateway, upstream: Upstream) -> tuple[int, int]:
    """Return the open files, without the connections to the upstream that are kept for further calls, and the tasks."""
    tasks = int((await gateway.gauges())["nproxy_event_loop_tasks"])
    kept = (await upstream.counts())["connections"] - 1  # this request has one, too
    return Usage.of(gateway.family()).files - kept, tasks


async def _back(gateway: Gateway, upstream: Upstream, files: int, tasks: int) -> tuple[int, int]:
    """Return files and tasks once they are at their baseline, or as they are when the time is over."""
    deadline = asyncio.get_running_loop().time() + BACK_SECONDS
    while True:
        now = await _held(gateway, upstream)
        if (now[0] <= files and now[1] <= tasks) or asyncio.get_running_loop().time() > deadline:
            return now
        await asyncio.sleep(0.2)
