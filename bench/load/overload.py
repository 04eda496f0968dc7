"""overload: three times as many requests as there are permits for; what fits is served as well as ever."""

from __future__ import annotations

import asyncio
import time

from bench.load.ask import Ask
from bench.load.bar import Result
from bench.load.client import Client
from bench.load.stand import Gateway, Stand, Watch, settings
from bench.load.talk import WIDTH
from bench.load.tape import Tape

TIMES = 3
LEAST_GOODPUT = 0.9
REFUSED_MS = 20.0


async def run(stand: Stand, *, permits: int, n: int, seconds: float, pace: float, tokens: int) -> Result:
    """Run the bar. permits: choices at once, which is the capacity.

    First a closed loop with as many clients as fit the capacity, each asking again as soon as it is answered: the peak.
    Then an open loop, whose requests come whether or not earlier ones have ended, at three times the rate that fits.
    """
    upstream = await stand.upstream(pace)
    config = settings(
        f"{upstream.url}/v1",
        limits={
            "inflight_choices": permits,
            "per_key_choices": permits,
            "queue_choices": permits,
            "queue_seconds": 4 * tokens / pace,
        },
    )
    gateway = await stand.gateway({**config, "n_policy": {"max_n": min(128, permits)}})
    peak, over = Tape(), Tape()
    at_peak = max(1.0, await _closed(gateway, peak, permits // n, seconds, n=n, tokens=tokens))
    watch = Watch(gateway)
    looking = asyncio.create_task(watch.look())
    service = (tokens + 1) / pace
    at_most = await _opened(gateway, over, TIMES * permits / n / service, seconds, n=n, tokens=tokens)
    looking.cancel()
    refused = over.answered_in("refused")
    figures = {
        "peak_tokens_per_second": round(at_peak),
        "overload_tokens_per_second": round(at_most),
        "goodput_of_peak": round(at_most / at_peak, 3),
        "outcomes_at_peak": dict(peak.outcomes),
        "outcomes": dict(over.outcomes),
        "details": dict(over.details.most_common(5)),
        "refused_ms": refused,
        "served_ms": over.answered_in("ok"),
        "gateway": {"most_rss_mib": watch.most, "cpu": round(watch.cpu, 3)},
    }
    kinds = set(over.outcomes)
    holds = {"what is not served is refused, nothing else": {"ok", "refused"} >= kinds and over.outcomes["refused"] > 0}
    long = {
        f"goodput >= {LEAST_GOODPUT:.0%} of the peak": at_most >= LEAST_GOODPUT * at_peak,
        f"refused within {REFUSED_MS:.0f} ms (median)": (refused["p50"] or 0.0) <= REFUSED_MS,
    }
    line = (
        f"{at_peak:,.0f} tokens/s at the peak, {at_most:,.0f} ({at_most / at_peak:.0%}) at three times the load; "
        f"refusals p50 {refused['p50']} ms, p99 {refused['p99']} ms"
    )
    return Result(line, figures, holds, long)


async def _closed(gateway: Gateway, tape: Tape, clients: int, seconds: float, *, n: int, tokens: int) -> float:
    """Run so many clients that ask again and again; returns the correct tokens per second."""
    begun = time.monotonic()

    async def one(number: int) -> None:
        client = Client("127.0.0.1", gateway.port, tape)
        while time.monotonic() < begun + seconds:
            await client.ask(Ask(number * n, n, tokens))
        client.close()

    async with asyncio.TaskGroup() as group:
        for number in range(clients):
            group.create_task(one(number))
    return tape.characters / WIDTH / (time.monotonic() - begun)


async def _opened(gateway: Gateway, tape: Tape, rate: float, seconds: float, *, n: int, tokens: int) -> float:
    """Send so many requests per second, each from an idle client or a new one.

    Returns the correct tokens per second during that time.
    """
    begun = time.monotonic()
    idle: list[Client] = []
    in_time = 0

    async def one(number: int) -> None:
        client = idle.pop() if idle else Client("127.0.0.1", gateway.port, tape)
        await client.ask(Ask(number * n, n, tokens))
        idle.append(client)

    async with asyncio.TaskGroup() as group:
        number = 0
        while (elapsed := time.monotonic() - begun) < seconds:
            while number < elapsed * rate:
                group.create_task(one(number))
                number += 1
            await asyncio.sleep(0.005)
        in_time = tape.characters
        elapsed = time.monotonic() - begun
    for client in idle:
        client.close()
    return in_time / WIDTH / elapsed
