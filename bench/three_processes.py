"""Measure what three processes cost: a step of the engine with the gateway idle, and with streams running through it.

    python bench/three_processes.py [--streams 8] [--tokens 128] [--rounds 5]

Starts `nproxy serve` (gateway, engine server, engine core). The same requests with the same seeds run in two ways,
alternating:
  idle     sent to the engine's own socket and answered whole: the gateway does nothing
  streams  sent through the gateway and streamed: gateway and engine server both write every token
They run once as separate requests for one choice, and once as one request for as many choices. A step's time is
`nproxy_engine_step_seconds`, its sum divided by its count, between two scrapes; the client runs on the same cores.
Prints conditions, medians and ratios, and writes them to bench/results/three_processes.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.real.processes import Server, nproxy  # noqa: E402 - the repository is not installed when this runs from a checkout

MODEL = "smollm2-135m-instruct"
QUESTION = "Tell me a long story about a lighthouse keeper, a storm and a very small boat."


def engine_socket(gateway: Server) -> str:
    """Return the Unix socket of the engine that this gateway started."""
    for child in gateway.children():
        words = child.cmdline()
        if "--uds" in words:
            return words[words.index("--uds") + 1]
    raise RuntimeError("the gateway has no engine on a Unix socket")


async def steps(session: aiohttp.ClientSession, url: str) -> tuple[float, float]:
    """Return the seconds spent in steps so far, and the number of steps."""
    async with session.get(f"{url}/metrics") as answer:
        text = await answer.text()
    found = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name in ("nproxy_engine_step_seconds_sum", "nproxy_engine_step_seconds_count")
    }
    return found["nproxy_engine_step_seconds_sum"], found["nproxy_engine_step_seconds_count"]


async def ask(session: aiohttp.ClientSession, url: str, body: dict[str, Any]) -> None:
    async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        async for _ in answer.content.iter_any():
            pass


async def measure(
    url: str, socket: str, *, through: bool, choices: int, requests: int, tokens: int, seed: int
) -> float:
    """Return the milliseconds per step while these requests run concurrently."""
    body: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}]}
    body |= {"max_tokens": tokens, "n": choices, "stream": through}
    timeout = aiohttp.ClientTimeout(total=None)
    async with (
        aiohttp.ClientSession(timeout=timeout) as front,
        aiohttp.ClientSession(timeout=timeout, connector=aiohttp.UnixConnector(socket)) as back,
    ):
        sender, target = (front, url) if through else (back, "http://engine")
        before = await steps(back, "http://engine")
        async with asyncio.TaskGroup() as group:
            for number in range(requests):
                group.create_task(ask(sender, target, {**body, "seed": seed + number * choices}))
        after = await steps(back, "http://engine")
    return 1000 * (after[0] - before[0]) / (after[1] - before[1])


async def run(url: str, socket: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    shapes = {
        f"{options.streams} requests, one choice each": {"choices": 1, "requests": options.streams},
        f"1 request, {options.streams} choices": {"choices": options.streams, "requests": 1},
    }
    rows = []
    for name, shape in shapes.items():
        times: dict[bool, list[float]] = {False: [], True: []}
        for number in range(-1, options.rounds):  # round -1 warms up and does not count
            for through in (False, True) if number % 2 else (True, False):
                taken = await measure(
                    url, socket, through=through, tokens=options.tokens, seed=1000 * (number + 1), **shape
                )
                if number >= 0:
                    times[through].append(round(taken, 3))
        idle, busy = statistics.median(times[False]), statistics.median(times[True])
        rows.append(
            {
                "shape": name,
                "idle_ms": idle,
                "streams_ms": busy,
                "ratio": round(busy / idle, 3),
                "rounds_idle_ms": times[False],
                "rounds_streams_ms": times[True],
            }
        )
    return rows


def conditions(options: argparse.Namespace) -> dict[str, Any]:
    packages = ("torch", "aiohttp", "uvloop")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "python": platform.python_version(),
        **{package: version(package) for package in packages},
        "model": MODEL,
        "streams": options.streams,
        "tokens": options.tokens,
        "rounds": options.rounds,
        "load_average_before": round(os.getloadavg()[0], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()

    result: dict[str, Any] = {"conditions": conditions(options)}
    print(json.dumps(result["conditions"], indent=1))
    if result["conditions"]["load_average_before"] > 0.5:
        print("The machine is busy with something else: run this again when it is not, these figures say little.")
    with (
        tempfile.TemporaryDirectory() as folder,
        nproxy(log=Path(folder) / "nproxy.log", seconds=120.0) as gateway,
    ):
        socket = engine_socket(gateway)
        result["rows"] = asyncio.run(run(gateway.url, socket, options))

    print(f"{'shape':40} {'idle ms':>9} {'streams ms':>11} {'ratio':>6}")
    for row in result["rows"]:
        print(f"{row['shape']:40} {row['idle_ms']:9.2f} {row['streams_ms']:11.2f} {row['ratio']:6.2f}")
    where = ROOT / "bench" / "results" / "three_processes.json"
    where.parent.mkdir(parents=True, exist_ok=True)
    where.write_text(json.dumps(result, indent=1) + "\n")
    print(f"written to {where.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
