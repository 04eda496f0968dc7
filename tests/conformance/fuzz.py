"""Plays random streams, requests and settings for as long as you like.

    python -m tests.conformance.fuzz [streams requests settings] [--executions 1000000] [--first 0]

streams: decodes streams that are cut anywhere, and merges one request. requests: parses a body. settings: reads a file
and an environment; it gets a hundredth of the executions, as each takes as long as a hundred of the others. Execution i
plays `Random(i)`, so a failure can be repeated with its target and `--first i --executions 1`. Exits with 1 at the
first failure.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.pool import Pool
from pathlib import Path
from random import Random

from tests.config import drawn_settings
from tests.conformance import whole_streams
from tests.openai import drawn_requests

CHUNK = 2000


def play_settings(rng: Random) -> None:
    with tempfile.TemporaryDirectory() as folder:
        drawn_settings.play(rng, Path(folder))


TARGETS: dict[str, tuple[Callable[[Random], None], int]] = {
    "streams": (whole_streams.play, 1),
    "requests": (drawn_requests.play, 1),
    "settings": (play_settings, 100),
}
"""What is played, and the divisor of the number of executions that it gets."""


def run(target: str, seeds: range) -> tuple[int, str]:
    """Play these seeds; return how many passed, and what was wrong with the next one, "" if all passed."""
    play, _ = TARGETS[target]
    for seed in seeds:
        try:
            play(Random(seed))
        except Exception:
            return seed - seeds.start, f"execution {seed} of {target}:\n{traceback.format_exc()}"
    return len(seeds), ""


def fuzz(pool: Pool, target: str, first: int, last: int, jobs: int) -> bool:
    """Play a target over and over, and print the progress; false once a failure is found."""
    chunks = [range(start, min(start + CHUNK, last)) for start in range(first, last, CHUNK)]
    started, done, told = time.monotonic(), 0, 0.0
    for went_well, wrong in pool.imap_unordered(partial(run, target), chunks):
        done += went_well
        seconds = time.monotonic() - started
        if wrong:
            print(wrong)
            return False
        if seconds - told > 60:
            told = seconds
            print(f"{done} executions of {target} in {seconds:.0f} s", flush=True)
    seconds = time.monotonic() - started
    print(f"{done} executions of {target} in {seconds:.0f} s ({jobs} processes); nothing found", flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description="Streams, requests and settings, everything about them drawn.")
    parser.add_argument("targets", nargs="*", choices=[[], *TARGETS], help="what is played; without a word: all")
    parser.add_argument("--executions", type=int, default=1_000_000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first execution")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    with Pool(asked.jobs) as pool:
        for target in asked.targets or TARGETS:
            _, part = TARGETS[target]
            last = asked.first + max(1, asked.executions // part)
            if not fuzz(pool, target, asked.first, last, asked.jobs):
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
