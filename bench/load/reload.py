"""reload: settings are reloaded and workers replaced, over and over, while streams run; none of them fails."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Any

from bench.load.ask import Ask
from bench.load.bar import Result
from bench.load.client import Client
from bench.load.stand import Gateway, Stand, Watch, settings
from bench.load.tape import Tape

PACE = 5.0
SETTLE_SECONDS = 30.0
READINGS = "nproxy_config_reloads_total"


async def run(
    stand: Stand, *, streams: int, reloads: int, restarts: int, interval: float, workers: int, tokens: int
) -> Result:
    """Run the bar.

    Every `interval` seconds the settings change, every fifth time to invalid ones that must be refused; in between,
    workers are replaced one after the other.
    """
    upstream = await stand.upstream(PACE)
    good = [_settings(upstream.url, workers, limit) for limit in (streams + 300, streams + 400)]
    gateway = await stand.gateway(good[0])
    tape, watch = Tape(), Watch(gateway)
    ended = asyncio.Event()
    done = {"reloads": 0, "refused": 0, "restarts": 0}
    async with asyncio.TaskGroup() as group:
        looking = group.create_task(watch.look())
        for number in range(streams):
            group.create_task(_client(Client("127.0.0.1", gateway.port, tape), number, tokens, ended))
        each = max(1, reloads // max(1, restarts)) if restarts else reloads + 1
        for turn in range(1, reloads + 1):
            await asyncio.sleep(interval)
            bad = turn % 5 == 0
            await _reload(stand, gateway, {"upstreams": 5} if bad else good[turn % 2], refused=bad)
            done["refused" if bad else "reloads"] += 1
            if turn % each == 0 and done["restarts"] < restarts:
                await _restart(gateway, tokens)
                done["restarts"] += 1
        ended.set()
        looking.cancel()
    figures = {
        "outcomes": dict(tape.outcomes),
        "details": dict(tape.details.most_common(5)),
        **done,
        **tape.times(),
        "gateway": {"most_rss_mib": watch.most, "cpu": round(watch.cpu, 3)},
    }
    line = (
        f"{done['reloads']} reloads taken, {done['refused']} refused, {done['restarts']} rolling restarts; "
        f"{tape.outcomes['ok']:,} streams whole"
    )
    return Result(line, figures, {f"0 failed of {tape.outcomes.total()}": set(tape.outcomes) == {"ok"}})


def _settings(url: str, workers: int, limit: int) -> dict[str, Any]:
    config = settings(f"{url}/v1", limits={"inflight_choices": limit, "per_key_choices": limit})
    return {**config, "listen": {"workers": workers, "drain_seconds": 60}}


async def _client(client: Client, number: int, tokens: int, ended: asyncio.Event) -> None:
    turn = 0
    await asyncio.sleep(number / 100)
    while not ended.is_set():
        await client.ask(Ask((number << 12) + turn, 1, tokens))
        turn += 1
    client.close()


async def _reload(stand: Stand, gateway: Gateway, config: dict[str, Any], *, refused: bool) -> None:
    """Change the file, and wait until the gateway has accepted or refused it."""
    before = (await gateway.gauges()).get(READINGS, 0.0)
    listen = {"host": "127.0.0.1", "port": gateway.port, **config.get("listen", {})}
    stand.config_file({**config, "listen": listen})
    gateway.child.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + SETTLE_SECONDS
    while time.monotonic() < deadline:
        now = await gateway.gauges()
        if now.get(READINGS, 0.0) > before and now["nproxy_config_reload_success"] == (not refused):
            return
        await asyncio.sleep(0.05)
    raise RuntimeError(f"settings were not {'refused' if refused else 'taken'}: {config}")


async def _restart(gateway: Gateway, tokens: int) -> None:
    """Replace all workers, and wait until the last of the old ones has ended."""
    old = {process.pid for process in gateway.family()[1:]}
    gateway.child.send_signal(signal.SIGUSR2)
    deadline = time.monotonic() + 2 * SETTLE_SECONDS + 4 * tokens / PACE
    while old & {process.pid for process in gateway.family()[1:]}:
        if time.monotonic() > deadline:
            raise RuntimeError("old workers are still there")
        await asyncio.sleep(0.1)
