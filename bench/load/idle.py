"""idle: thousands of connected clients that ask nothing: the memory for each, and whether others are answered."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack

from bench.load.ask import Ask
from bench.load.bar import Result
from bench.load.client import Client
from bench.load.stand import Gateway, Stand, Usage, demand_files, mebibytes, settings
from bench.load.tape import Tape

N, TOKENS = 8, 8
ASKED = 50
"""Number of requests before, and while the idle connections are open."""
BACK_SECONDS = 15.0
SPARE_FILES = 500
MOST_KIB = 16.0
MOST_MS = 100.0


async def run(stand: Stand, *, idle: int, processes: int, workers: int) -> Result:
    """Run the bar.

    idle: connections in all. processes: that hold them. workers: of the gateway; each accepts connections up to half of
    its limit of open files.
    """
    demand_files(max(2 * idle // workers, idle // processes) + SPARE_FILES)
    upstream = await stand.upstream(0.0)
    gateway = await stand.gateway({**settings(f"{upstream.url}/v1"), "listen": {"workers": workers}})
    alone, beside = Tape(), Tape()
    await _ask(gateway, Tape())  # what is created once is created before the baseline
    await _ask(gateway, alone)
    before = Usage.of(gateway.family())
    with ExitStack() as stack:
        begun = time.monotonic()
        idlers = [_idler(stack, gateway, idle // processes) for _ in range(processes)]
        opened = await _said(idlers)
        seconds = time.monotonic() - begun
        held = Usage.of(gateway.family())
        await _ask(gateway, beside)
        for one in idlers:
            assert one.stdin is not None
            one.stdin.write(b"\n")
            one.stdin.flush()
        left = await _said(idlers)
    after = await _back(gateway, before.files)
    each = (held.rss - before.rss) / 1024 / idle
    answered = {"alone": alone.answered_in("ok"), "beside": beside.answered_in("ok")}
    figures = {
        "outcomes": [dict(alone.outcomes), dict(beside.outcomes)],
        "idle_connections": [opened, left],
        "opened_per_second": round(opened / seconds),
        "files": [before.files, held.files, after.files],
        "rss_mib": [mebibytes(usage.rss) for usage in (before, held, after)],
        "kib_per_connection": round(each, 2),
        "answered_ms": answered,
    }
    holds = {
        f"all {idle:,} stay open": opened == left == idle <= held.files,
        "every choice byte-exact beside them": set(beside.outcomes) == {"ok"},
        "open files are back": after.files <= before.files,
    }
    times = {when: f"p50 {found['p50']:.1f} ms, p99 {found['p99']:.1f} ms" for when, found in answered.items()}
    line = (
        f"{idle:,} connections, {each:.1f} KiB of RSS each; "
        f"n={N} beside them answered in {times['beside']}; alone {times['alone']}"
    )
    quick = (answered["beside"]["p50"] or 0.0) <= MOST_MS
    long = {f"RSS <= {MOST_KIB:.0f} KiB each": each <= MOST_KIB, f"half of the answers in {MOST_MS:.0f} ms": quick}
    return Result(line, figures, holds, long)


async def _ask(gateway: Gateway, tape: Tape) -> None:
    client = Client("127.0.0.1", gateway.port, tape)
    for number in range(ASKED):
        await client.ask(Ask(number * N, N, TOKENS, stream=number % 2 == 0))
    client.close()


def _idler(stack: ExitStack, gateway: Gateway, count: int) -> subprocess.Popen[bytes]:
    """Start a process that opens connections, and holds them until the stack is closed."""
    words = [sys.executable, "-m", "bench.load.idler", str(gateway.port), str(count)]
    return stack.enter_context(subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE))


async def _said(idlers: Sequence[subprocess.Popen[bytes]]) -> int:
    """Return the sum of the next number of each process."""
    lines = await asyncio.gather(*(asyncio.to_thread(one.stdout.readline) for one in idlers if one.stdout is not None))
    return sum(int(line or b"0") for line in lines)


async def _back(gateway: Gateway, files: int) -> Usage:
    """Return the usage once the files are closed, or when the time is over."""
    deadline = time.monotonic() + BACK_SECONDS
    while True:
        usage = Usage.of(gateway.family())
        if usage.files <= files or time.monotonic() > deadline:
            return usage
        await asyncio.sleep(0.1)
