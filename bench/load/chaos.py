"""chaos: every fault at once, for a quarter of an hour; no wrong byte, no hang, and nearly all answers complete.

There are two replicas, each behind a proxy that breaks connections. They close the connection after each answer, so
that each call has its own chance of a fault. Clients ask for one choice and for eight in turn, and some disconnect. A
worker of the gateway is killed now and then; its requests are counted separately, by the ports of its connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil

from bench.load.ask import Ask, Outcome
from bench.load.bar import Result
from bench.load.client import Client
from bench.load.stand import Gateway, Stand, Watch, settings
from bench.load.tape import Tape
from tests.fakes.chaos import ChaosProxy, Fault, drawn

UNAVAILABLE = 0.05
FAULTS = {Fault("reset"): 0.05, Fault("stall", after=500): 0.02, Fault("garble"): 0.01}
"""Stalls happen in mid-stream: before its first event a silent call may still be at work."""
LEAVERS = 0.1
WIDTHS = (1, 8)
IDLE_SECONDS = 2.0
LEAST_GOODPUT = 0.99
EVENT_BYTES = 180


@dataclass(slots=True)
class Casualties:
    """Connections of killed workers: the client's port, and when the worker was killed."""

    ports: dict[int, float] = field(default_factory=dict)
    killed: int = 0

    def has(self, outcome: Outcome) -> bool:
        """Whether this answer was cut because its worker was killed within the last 5 s."""
        at = self.ports.get(outcome.port, 0.0)
        return outcome.kind == "cut" and time.monotonic() - at < 5.0


async def run(
    stand: Stand, *, seconds: float, seconds_off: float, clients: int, workers: int, kill_every: float, tokens: int
) -> Result:
    """Run the bar.

    seconds: with `resume: replay`. seconds_off: the same without resume, for comparison. kill_every: seconds between
    kills.
    """
    figures: dict[str, Any] = {}
    for resume, lasts in (("replay", seconds), ("off", seconds_off)):
        if lasts:
            figures[resume] = await _phase(stand, resume, lasts, clients, workers, kill_every, tokens)
    replay = figures["replay"]
    outcomes, killed = replay["outcomes"], replay["on_killed_workers"]
    holds = {
        "0 wrong bytes, resume on or off": not any(figures[resume]["outcomes"].get("wrong") for resume in figures),
        "0 hangs, resume on or off": not any(figures[resume]["outcomes"].get("hang") for resume in figures),
        "faults of every kind struck": {"reset", "stall", "garble"} <= set(replay["faults"]) or seconds < 60,
        "workers were killed, and answers go on": workers == 1 or (replay["workers_killed"] > 0 and outcomes["ok"] > 0),
    }
    long = {
        f"goodput >= {LEAST_GOODPUT:.0%}, without the {killed} on killed workers": replay["goodput"] >= LEAST_GOODPUT
    }
    without = f", {figures['off']['goodput']:.2%} without" if seconds_off else ""
    line = (
        f"goodput {replay['goodput']:.2%} with resume{without}; "
        f"{outcomes['ok']:,} whole, "
        f"{replay['resumes']:.0f} resumes, {replay['workers_killed']} workers killed with {killed} streams on them"
    )
    return Result(line, figures, holds, long)


async def _phase(
    stand: Stand, resume: str, seconds: float, clients: int, workers: int, kill_every: float, tokens: int
) -> dict[str, Any]:
    tape, casualties, on_killed = Tape(), Casualties(), Counter[str]()
    async with _replicas(stand, seed=resume, tokens=tokens) as proxies:
        config = settings(
            *(proxy.url for proxy in proxies),
            resume=resume,
            retries={"per_leg": 3, "budget": 0.5},
            timeouts={"connect": 5, "first_event": 10, "idle": IDLE_SECONDS},
        )
        gateway = await stand.gateway({**config, "listen": {"workers": workers}})
        watch = Watch(gateway)
        until = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            looking = group.create_task(watch.look())
            killing = group.create_task(_kill(gateway, casualties, kill_every)) if workers > 1 else None
            async with asyncio.TaskGroup() as asking:
                for number in range(clients):
                    client = Client("127.0.0.1", gateway.port, tape, hang=60.0)
                    asking.create_task(_client(client, number, until, tokens, casualties, on_killed))
            looking.cancel()
            if killing is not None:
                killing.cancel()
        counted = Counter(tape.outcomes) - on_killed
        failed = sum(counted[kind] for kind in ("wrong", "error", "cut", "hang", "refused"))
        gauges = await gateway.gauges()
        return {
            "outcomes": dict(tape.outcomes),
            "details": dict(tape.details.most_common(8)),
            "on_killed_workers": on_killed.total(),
            "workers_killed": casualties.killed,
            "goodput": round(counted["ok"] / max(1, counted["ok"] + failed), 5),
            "faults": dict(sum((Counter(proxy.suffered) for proxy in proxies), Counter())),
            "resumes": gauges.get("nproxy_resumes_total", 0.0),
            "retries": gauges.get("nproxy_retries_total", 0.0),
            **tape.times(),
            "gateway": {"most_rss_mib": watch.most, "cpu": round(watch.cpu, 3)},
        }


@asynccontextmanager
async def _replicas(stand: Stand, *, seed: str, tokens: int) -> AsyncIterator[list[ChaosProxy]]:
    """Start two upstreams behind proxies that inject faults."""
    async with contextlib.AsyncExitStack() as stack:
        proxies = []
        for number in range(2):
            upstream = await stand.upstream(10.0, close=True)
            await upstream.refuse(UNAVAILABLE)
            choose = drawn(hash((len(seed), number)), FAULTS, within=EVENT_BYTES * tokens)
            proxies.append(await stack.enter_async_context(ChaosProxy("127.0.0.1", upstream.port, choose)))
        yield proxies


async def _client(
    client: Client, number: int, until: float, tokens: int, casualties: Casualties, on_killed: Counter[str]
) -> None:
    draw = random.Random(f"chaos {number}")
    turn = number
    while time.monotonic() < until:
        leave = draw.uniform(0.0, tokens / 10.0) if draw.random() < LEAVERS else None
        outcome = await client.ask(
            Ask((number << 16) + turn * max(WIDTHS), WIDTHS[turn % len(WIDTHS)], tokens, leave=leave, cuts=True)
        )
        if casualties.has(outcome):
            on_killed[outcome.kind] += 1
        if outcome.kind in ("cut", "refused"):
            await asyncio.sleep(0.2)  # as a client does if it cannot connect
        turn += 1
    client.close()


async def _kill(gateway: Gateway, casualties: Casualties, every: float) -> None:
    draw = random.Random("kill")
    while True:
        await asyncio.sleep(every)
        workers = gateway.family()[1:]
        if not workers:
            continue
        worker = draw.choice(workers)
        with contextlib.suppress(psutil.NoSuchProcess):
            worker.suspend()  # nothing is accepted between reading the connections and killing
            now = time.monotonic()
            for connection in worker.net_connections("tcp"):
                if connection.raddr and connection.laddr.port == gateway.port:
                    casualties.ports[connection.raddr.port] = now
            worker.kill()
            casualties.killed += 1
