"""Whole streams for as long as you like: each execution decodes streams cut anywhere and merges one request.

    python -m tests.conformance.fuzz [--executions 1000000] [--first 0]

Execution i plays `Random(i)`, so that a failure is found again by `--first i --executions 1`. Exits 1 at the first.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from multiprocessing import Pool
from random import Random

from tests.conformance.whole_streams import play

CHUNK = 2000


def run(seeds: range) -> tuple[int, str]:
    """Play these; gives how many went well, and what was wrong with the next one."""
    for seed in seeds:
        try:
            play(Random(seed))
        except Exception:
            return seed - seeds.start, f"execution {seed}:\n{traceback.format_exc()}"
    return len(seeds), ""


def main() -> int:
    parser = argparse.ArgumentParser(description="Decode and merge whole streams, everything about them drawn.")
    parser.add_argument("--executions", type=int, default=1_000_000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first execution")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    last = asked.first + asked.executions
    chunks = [range(start, min(start + CHUNK, last)) for start in range(asked.first, last, CHUNK)]
    started, done, told = time.monotonic(), 0, 0.0
    with Pool(asked.jobs) as pool:
        for went_well, wrong in pool.imap_unordered(run, chunks):
            done += went_well
            seconds = time.monotonic() - started
            if wrong:
                print(wrong)
                return 1
            if seconds - told > 60:
                told = seconds
                print(f"{done} executions in {seconds:.0f} s", flush=True)
    seconds = time.monotonic() - started
    print(f"{done} executions of decoder and merge in {seconds:.0f} s ({asked.jobs} processes); nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
