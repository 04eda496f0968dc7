"""wide: many clients of n choices each, all at once, for minutes: checks every byte, and the gateway's memory."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from bench.load.ask import Ask
from bench.load.bar import Result
from bench.load.client import Client
from bench.load.stand import Stand, Watch, demand_files, settings
from bench.load.talk import WIDTH
from bench.load.tape import Tape

MOST_MIB = 350.0
SPARE_FILES = 500


async def run(stand: Stand, *, clients: int, n: int, seconds: float, pace: float, tokens: int) -> Result:
    """Run the bar.

    pace: tokens per second of each stream. tokens: of each choice; then its client asks again.
    """
    demand_files(clients * (n + 1) + SPARE_FILES)
    upstream = await stand.upstream(pace)
    wide = clients * n + 1000
    gateway = await stand.gateway(
        settings(
            f"{upstream.url}/v1",
            max_inflight=wide,
            limits={"inflight_choices": wide, "per_key_choices": wide, "queue_choices": wide, "queue_seconds": 60},
        )
    )
    tape = Tape()
    watch = Watch(gateway)
    looking = asyncio.create_task(watch.look())
    begun = time.monotonic()
    until = begun + seconds
    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(_client(Client("127.0.0.1", gateway.port, tape), number, until, n=n, tokens=tokens))
            if number % 20 == 19:
                await asyncio.sleep(0.05)  # 400 clients per second, so that the start is not a burst
    elapsed = time.monotonic() - begun
    looking.cancel()
    counts = await upstream.counts()
    figures: dict[str, Any] = {
        "outcomes": dict(tape.outcomes),
        "details": dict(tape.details.most_common(5)),
        "most_streams": counts["most_open"],
        "tokens_per_second": round(tape.characters / WIDTH / elapsed),
        **tape.times(),
        "gateway": {"most_rss_mib": watch.most, "cpu": round(watch.cpu, 3), "rss_mib": watch.thinned()},
    }
    holds = {
        "every choice byte-exact, no errors": set(tape.outcomes) == {"ok"},
        f"RSS <= {MOST_MIB:.0f} MiB": watch.most <= MOST_MIB,
    }
    gap = figures["between_texts_ms"]
    line = (
        f"{counts['most_open']:,} streams of {pace} tokens/s, RSS {watch.most:.0f} MiB, CPU {watch.cpu:.0%} of a core, "
        f"{tape.outcomes['ok']:,} requests, between texts p50 {gap['p50']:.0f} ms, p99 {gap['p99']:.0f} ms"
    )
    return Result(line, figures, holds, {f"{clients * n} streams at once": counts["most_open"] == clients * n})


async def _client(client: Client, number: int, until: float, *, n: int, tokens: int) -> None:
    turn = 0
    while time.monotonic() < until:
        await client.ask(Ask(seed=number * 1000 + turn * n, n=n, tokens=tokens))
        turn += 1
    client.close()
