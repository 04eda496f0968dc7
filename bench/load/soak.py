"""soak: many requests in equal cycles; the memory of the gateway after each cycle does not grow."""

from __future__ import annotations

import asyncio
import statistics
import time

from bench.load.ask import Ask
from bench.load.bar import Result
from bench.load.client import Client
from bench.load.stand import Gateway, Stand, Usage, mebibytes, settings
from bench.load.tape import Tape

N, TOKENS = 4, 8
SETTLE_SECONDS = 6.0
"""Pause after a cycle: kept connections are closed by then."""
SKIPPED = 2
MOST_SLOPE = 1.0


async def run(stand: Stand, *, requests: int, cycles: int, clients: int) -> Result:
    """Run the bar. requests: in all. clients: how many ask at once, each again as soon as it is answered."""
    upstream = await stand.upstream(0.0)
    gateway = await stand.gateway(settings(f"{upstream.url}/v1"))
    tape = Tape()
    held: list[float] = []
    begun = time.monotonic()
    busy = 0.0
    for cycle in range(cycles):
        started = time.monotonic()
        await _cycle(gateway, tape, cycle * requests, requests // cycles, clients)
        busy += time.monotonic() - started
        await gateway.wait_idle(SETTLE_SECONDS)
        await asyncio.sleep(SETTLE_SECONDS if requests > 10 * cycles * clients else 0.0)
        held.append(mebibytes(Usage.of(gateway.family()).rss))
    last = held[SKIPPED:]
    per_cycle = statistics.linear_regression(range(len(last)), last).slope
    slope = per_cycle * 10_000 / (requests / cycles)
    figures = {
        "outcomes": dict(tape.outcomes),
        "details": dict(tape.details.most_common(5)),
        "seconds": round(time.monotonic() - begun, 1),
        "requests_per_second": round(requests / busy, 1),
        "rss_mib_behind_each_cycle": held,
        "mib_per_10000_requests": round(slope, 3),
        "answered_ms": tape.answered_in("ok"),
    }
    name = f"RSS slope of the last {len(last)} cycles <= {MOST_SLOPE:.0f} MiB per 10,000 requests"
    line = f"{slope:+.2f} MiB per 10,000 requests, {held[-1]:.0f} MiB after the last, {requests / busy:.0f} requests/s"
    return Result(line, figures, {"every choice byte-exact": set(tape.outcomes) == {"ok"}}, {name: slope <= MOST_SLOPE})


async def _cycle(gateway: Gateway, tape: Tape, first: int, requests: int, clients: int) -> None:
    todo = iter(range(first, first + requests))

    async def one() -> None:
        client = Client("127.0.0.1", gateway.port, tape)
        for number in todo:
            await client.ask(Ask(number * N, N, TOKENS, stream=number % 4 != 0))
        client.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(one())
