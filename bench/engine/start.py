"""Measure how long `nproxy serve` takes until it is ready, with the default model, in turns with other checkouts.

    python -m bench.engine.start [CHECKOUT ...] [--rounds 6]

Each start is a new process with this Python, until /ready says yes. One start of each checkout comes before the rounds,
so that all files are compiled and read. Prints the median and all times, in seconds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import httpx

from tests.ports import free_port

ROOT = Path(__file__).parents[2]

_POLL_SECONDS = 0.02
_MOST_SECONDS = 120.0


def main() -> None:
    """Start each checkout in turn, and print its times."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("checkouts", nargs="*", type=Path, default=[ROOT])
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    times: dict[Path, list[float]] = {checkout: [] for checkout in options.checkouts}
    for number in range(options.rounds + 1):
        for checkout, seconds in times.items():
            taken = start(checkout)
            if number > 0:
                seconds.append(taken)
    for checkout, seconds in times.items():
        print(f"{checkout}: {statistics.median(seconds):.2f} s", *(f"{one:.2f}" for one in sorted(seconds)))


def start(checkout: Path) -> float:
    """Return the seconds from the start of the process to the first yes of /ready; end the process."""
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    began = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", "nproxy", "serve", "--port", str(port)],
        cwd=checkout,
        env={**environment, "PYTHONPATH": str(checkout.resolve())},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
                while not ready(client):
                    if process.poll() is not None or time.perf_counter() - began > _MOST_SECONDS:
                        raise SystemExit(f"{checkout} did not become ready")
                    time.sleep(_POLL_SECONDS)
            return time.perf_counter() - began
        finally:
            process.terminate()


def ready(client: httpx.Client) -> bool:
    """Whether the gateway says that it is ready."""
    try:
        return client.get("/ready").status_code == 200
    except httpx.HTTPError:
        return False


if __name__ == "__main__":
    main()
