"""How the gateway's cost grows with the number of concurrent streams, and with n.

    python -m bench.gateway.curves [--streams 1,...,8000] [--n 1,...,128] [--seconds 4]

One gateway on a core of its own, the load on another, as in `python -m bench.gateway`. Streams: a number of streams of
n=1, paced together at about 8,000 chunks per second, each at 500 at most and at one at least. n: 128 choices in all, as
requests of n choices each, 6,400 chunks per second; then one request of n choices after the other, on an idle gateway.
With many streams, the measurement lasts at least as long as two streams after each other: otherwise it would show only
the cost of starting all of them at once. Prints tables and, unless some points were left out, writes them to
bench/results/gateway-curves.json and docs/performance.md.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.engine.options import numbers
from bench.engine.page import put, write
from bench.gateway.accounting import cores, family, on_core, peak_mib
from bench.gateway.cases import Case
from bench.gateway.figures import Cell, cell
from bench.gateway.measuring import quietly
from bench.gateway.page import conditions, markdown
from bench.gateway.peers import Peer, Running, ours
from bench.gateway.programs import upstream

STREAMS = (1, 8, 64, 256, 1000, 2000, 4000, 8000)
WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128)
MOST_PACE, TOGETHER, CHUNKS = 500, 8000, 32
SIDE_BY_SIDE, EACH = 128, 50
"""Streams in all, and chunks per second of each, while n grows."""
ALONE = Case("one request after the other", 1, chunks=8, answers=100, pause_ms=2)


@dataclass(frozen=True, slots=True)
class Point:
    """What was measured at one point."""

    at: int
    """The number of streams, or of choices."""
    asked: int
    """The requested chunks per second."""
    rate: float
    """The chunks per second that arrived."""
    cpu_us: float
    busy: float
    first_ms: float
    last_first_ms: float
    rss_mib: float
    """The gateway's peak memory so far."""


def streams(count: int) -> Case:
    """Return the case of so many streams of one choice each."""
    return Case("streams", count, chunks=CHUNKS, pace=min(MOST_PACE, max(1, TOGETHER // count)))


def watched(case: Case, seconds: float) -> float:
    """Return for how many seconds new requests are made: as many as given, or as two streams after each other take."""
    return max(seconds, 2 * case.chunks / case.pace)


def side_by_side(n: int) -> Case:
    """Return the case with the same number of streams for every n."""
    return Case("n", SIDE_BY_SIDE // n, n=n, chunks=CHUNKS, pace=EACH)


def alone(n: int) -> Case:
    """Return the case of one request at a time."""
    return Case(ALONE.says, 1, n=n, chunks=ALONE.chunks, answers=ALONE.answers, pause_ms=ALONE.pause_ms)


def measure(at: int, case: Case, running: Running, load: Sequence[int], seconds: float) -> Point:
    """Play a case. Raises RuntimeError if an answer was not complete."""
    match cell([quietly(case, running, load, seconds)]):
        case str(wrong):
            raise RuntimeError(f"{case.says}, {at}: {wrong}")
        case Cell() as found:
            pass
    assert running.pid is not None
    rss = peak_mib(family(running.pid))
    asked = case.pace * case.connections * case.n
    busy = found.rounds[0].gateway_busy
    point = Point(at, asked, found.rate, found.cpu_us, busy, found.first_ms, found.last_first_ms, rss)
    print(f"{case.says:28} {at:5} {point.rate:8,.0f}/s {point.cpu_us:7.1f} us {point.first_ms:8.2f} ms", flush=True)
    return point


def run(counts: Sequence[int], widths: Sequence[int], seconds: float) -> dict[str, Any]:
    """Measure all three curves; returns the record."""
    gateway_core, load_core = cores()
    told = conditions(rounds=1, seconds=seconds, cores=(gateway_core, load_core))
    peer = Peer(lambda: "", ours, "settings/curves.yaml", ready="/ready", n="own")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-gateway-")))
        stack.enter_context(on_core(load_core))
        port, load = stack.enter_context(upstream())
        with on_core(gateway_core):
            running = stack.enter_context(peer.started(port, folder))
        together = [measure(n, side_by_side(n), running, [load], seconds) for n in widths]
        one = [measure(n, alone(n), running, [load], seconds) for n in widths]
        open_at_once: list[Point] = []
        missing: list[str] = []
        for count, case in zip(counts, map(streams, counts), strict=True):
            try:
                open_at_once.append(measure(count, case, running, [load], watched(case, seconds)))
            except RuntimeError as wrong:  # thousands of streams meet limits of the machine
                missing.append(str(wrong))
    curves = {"streams": open_at_once, "n": together, "alone": one}
    points = {name: [asdict(point) for point in points] for name, points in curves.items()}
    return {"conditions": told, **points, "missing": missing}


def tables(result: dict[str, Any]) -> str:
    """Return the record as Markdown."""
    taken = result["conditions"]
    machine = f"{taken['cpu']}, Linux {taken['kernel']}, Python {taken['python']}"
    head = f"{taken['date']}, commit {taken['commit']}, {machine}; load average before: {taken['load_average_before']}."
    points = {name: [Point(**point) for point in result[name]] for name in ("streams", "n", "alone")}
    flow = ("chunks/s asked", "came", "us each", "of a core", "first word")
    many = markdown(
        ("streams at once", *flow, "RSS, MiB"), [(*_flow(point), f"{point.rss_mib:.0f}") for point in points["streams"]]
    )
    wide = markdown(
        ("n", *flow, "idle: first word", "of the last choice"),
        [
            (*_flow(point), f"{one.first_ms:.2f} ms", f"{one.last_first_ms:.2f} ms")
            for point, one in zip(points["n"], points["alone"], strict=True)
        ],
    )
    missing = "".join(f"\nNo figure: {wrong}\n" for wrong in result["missing"])
    return f"{head}\n\n{many}\n{wide}{missing}"


def _flow(point: Point) -> tuple[str, ...]:
    figures = f"{point.asked:,}", f"{point.rate:,.0f}", f"{point.cpu_us:.1f}", f"{point.busy:.0%}"
    return (f"{point.at:,}", *figures, f"{point.first_ms:,.1f} ms")


def main(words: Sequence[str]) -> int:
    """Measure, print and write the curves."""
    parser = argparse.ArgumentParser(prog="bench.gateway.curves", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", type=numbers, default=STREAMS, help="streams at once, by commas")
    parser.add_argument("--n", type=numbers, default=WIDTHS, help="choices, by commas")
    parser.add_argument("--seconds", type=float, default=4.0, help="for how long new requests are made at each point")
    asked = parser.parse_args(words)
    result = run(tuple(asked.streams), tuple(asked.n), asked.seconds)
    text = tables(result)
    print(text)
    if (tuple(asked.streams), tuple(asked.n)) == (STREAMS, WIDTHS):
        write("gateway-curves", result)
        put("gateway-curves", text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
