"""A replica is stopped (SIGSTOP) under load: how long new requests suffer.

    python -m bench.failover.stopping [--behind engine|llama.cpp] [--rate 3] [--before 20] [--stopped 60] [--after 30]

A stopped server is the hardest failure to detect: its kernel still accepts connections, and nothing ever comes back.
Two servers of the default model run behind nproxy with default settings. Requests of n=2 are started at a steady rate,
streamed, whether or not earlier ones have ended; one server is stopped and later continued. Reported: the median and
the 99th percentile of the time to the end, and the number of failures, for the requests begun in each five seconds; and
after how many seconds from the stop the 99th percentile of requests begun from then on was back within twice what it
was before. Written to bench/results/stopping-BEHIND.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import httpx

from bench.failover.replicas import BEHIND, MODEL, Pair
from tests.real.processes import nproxy

ROOT = Path(__file__).resolve().parents[2]
WINDOW = 5.0
PATIENCE = 150.0
"""Seconds; longer than any time limit of nproxy: a request that takes so long hangs."""


@dataclass(frozen=True, slots=True)
class Request:
    """begun: seconds from the stop. first, end: seconds from the request. outcome: ok, or what went wrong."""

    begun: float
    first: float
    end: float
    outcome: str


async def ask(client: httpx.AsyncClient, url: str, stopped_at: float, seed: int) -> Request:
    """Send one request of two choices."""
    begun, first, outcome = time.monotonic(), float("nan"), "cut"
    body = {"model": MODEL, "prompt": f"Request {seed}: the sea is", "n": 2, "max_tokens": 6, "seed": seed}
    try:
        async with client.stream("POST", f"{url}/v1/completions", json={**body, "stream": True}) as answer:
            if answer.status_code != 200:
                outcome = str(answer.status_code)
            async for line in answer.aiter_lines():
                if line.startswith("data: {") and first != first:
                    first = time.monotonic() - begun
                if '"error"' in line:
                    outcome = "error event"
                elif line == "data: [DONE]" and outcome == "cut":
                    outcome = "ok"
    except httpx.TimeoutException:
        outcome = "hung"
    except httpx.TransportError as error:
        outcome = type(error).__name__
    return Request(begun - stopped_at, first, time.monotonic() - begun, outcome)


async def load(url: str, pair: Pair, rate: float, times: tuple[float, float, float]) -> list[Request]:
    """Begin requests at a steady rate, stop the first server in between, and wait for all requests."""
    before, stopped, after = times
    began = time.monotonic()
    stopped_at = began + before
    family = [process.pid for process in pair.servers[0].family()]
    asked: list[asyncio.Task[Request]] = []
    signals = [(stopped_at, signal.SIGSTOP), (stopped_at + stopped, signal.SIGCONT)]
    client = httpx.AsyncClient(timeout=PATIENCE, trust_env=False, limits=httpx.Limits())
    async with client, asyncio.TaskGroup() as group:
        for number in range(int((before + stopped + after) * rate)):
            await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
            if signals and time.monotonic() >= signals[0][0]:
                _, what = signals.pop(0)
                for pid in family:
                    os.kill(pid, what)
            asked.append(group.create_task(ask(client, url, stopped_at, number)))
    return [task.result() for task in asked]


def p99(seconds: Sequence[float]) -> float:
    """Return the 99th percentile; for fewer than a hundred values, the largest."""
    return sorted(seconds)[max(0, -(-99 * len(seconds) // 100) - 1)]


def back_after(requests: Sequence[Request], normal: float) -> float | None:
    """Return the second after the stop from which on the 99th percentile of all later requests is normal again."""
    later = [request for request in requests if request.begun >= 0]
    for second in range(int(max(request.begun for request in later)) + 1):
        rest = [request.end for request in later if request.begun >= second]
        if rest and p99(rest) <= normal:
            return float(second)
    return None


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench.failover.stopping", description=__doc__.splitlines()[0])
    parser.add_argument("--behind", choices=BEHIND, default="llama.cpp")
    parser.add_argument("--rate", type=float, default=3.0)
    parser.add_argument("--before", type=float, default=20.0)
    parser.add_argument("--stopped", type=float, default=60.0)
    parser.add_argument("--after", type=float, default=30.0)
    asked = parser.parse_args(words)
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pair = stack.enter_context(Pair.started(BEHIND[asked.behind], logs))
        file = logs / "nproxy.yaml"
        file.write_text(json.dumps({"upstreams": [{"name": "pair", "replicas": [f"{url}/v1" for url in pair.urls]}]}))
        gateway = stack.enter_context(nproxy("--config", str(file), log=logs / "nproxy.log"))
        requests = asyncio.run(load(gateway.url, pair, asked.rate, (asked.before, asked.stopped, asked.after)))
    undisturbed = [request.end for request in requests if -asked.before + WINDOW <= request.begun < -WINDOW]
    rows = []
    for start in range(-int(asked.before), int(asked.stopped + asked.after), int(WINDOW)):
        inside = [request for request in requests if start <= request.begun < start + WINDOW]
        if inside:
            ends = [request.end for request in inside]
            failed = sum(request.outcome != "ok" for request in inside)
            rows.append((start, len(inside), failed, median(ends), p99(ends)))
            counts = f"{len(inside):3d} requests  {failed:2d} failed"
            print(f"{start:5d} s  {counts}  p50 {median(ends):6.2f}  p99 {p99(ends):6.2f} s")
    back = back_after(requests, 2 * p99(undisturbed))
    unanswered = [asdict(request) for request in requests if request.outcome != "ok"]
    print(
        f"p99 before {p99(undisturbed):.2f} s; back within twice that {back} s after the stop; {len(unanswered)} failed"
    )
    record = {
        "conditions": {**vars(asked), "machine": platform.platform(), "python": platform.python_version()},
        "windows": [dict(zip(("start", "requests", "failed", "p50", "p99"), row, strict=True)) for row in rows],
        "p99_before": p99(undisturbed),
        "back_after_seconds": back,
        "failed": unanswered,
    }
    (ROOT / "bench" / "results" / f"stopping-{asked.behind}.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
