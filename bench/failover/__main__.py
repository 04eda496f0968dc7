"""A replica is killed while it streams n=8: what the clients of nproxy and of other routers see.

    python -m bench.failover [--behind engine|llama.cpp] [--tokens 48] [--rounds 3] [--only NAME ...]

Two servers of the default model run behind each router in turn. The same request (n=8, streamed, one seed) is sent once
undisturbed and once with SIGKILL for the busier server as soon as every choice has produced text. Reported for each
router: how many of the eight choices finished, how many are byte for byte those of the undisturbed run, how the stream
ended, and the longest silence. Prints a table and writes it to bench/results/failover-BEHIND.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path

from bench.failover.fronts import FRONTS
from bench.failover.replicas import BEHIND, Pair
from bench.failover.watching import Scene, Seen, play

ROOT = Path(__file__).resolve().parents[2]


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench.failover", description=__doc__.splitlines()[0])
    parser.add_argument("--behind", choices=BEHIND, default="engine")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=FRONTS, nargs="*", default=[])
    asked = parser.parse_args(words)
    told: dict[str, dict[str, object]] = {}
    for name in asked.only or FRONTS:
        seen = [_round(name, asked.behind, asked.tokens) for _ in range(asked.rounds)]
        told[name] = {"rounds": [{key: value for key, value in asdict(one).items() if key != "texts"} for one in seen]}
        print(_row(name, seen), flush=True)
    conditions = {
        "behind": asked.behind,
        "tokens": asked.tokens,
        "choices": 8,
        "machine": platform.platform(),
        "python": platform.python_version(),
    }
    record = ROOT / "bench" / "results" / f"failover-{asked.behind}.json"
    record.write_text(json.dumps({"conditions": conditions, "fronts": told}, indent=1) + "\n")


def _round(name: str, behind: str, tokens: int) -> Seen:
    """Make one undisturbed run and one with a kill, on servers of their own."""
    front = FRONTS[name]
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pair = stack.enter_context(Pair.started(BEHIND[behind], logs))
        url = stack.enter_context(front.started(pair, logs))
        scene = Scene(url, front.endpoint, pair.model, tokens)
        before = play(scene)
        after = play(scene, kill=partial(pair.kill_the_busier, pair.busy_seconds()))
        return after.beside(before)


def _row(name: str, seen: Sequence[Seen]) -> str:
    finished = statistics.median(one.finished for one in seen)
    equal = statistics.median(one.equal for one in seen)
    silence = statistics.median(one.longest_silence for one in seen)
    ends = ", ".join(sorted({one.end for one in seen}))
    return f"{name:24} finished {finished:g}/8  equal {equal:g}/8  {ends:40} longest silence {silence:.1f} s"


if __name__ == "__main__":
    main(sys.argv[1:])
