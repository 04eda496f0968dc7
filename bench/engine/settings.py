"""Measure what a request's settings cost: an answer of 32 choices with each of them, by the same answer without.

    python bench/engine/settings.py [--n 32] [--rounds 5]

Starts `nproxy serve` with the default model. In each round the settings have their turns, with a plain request between
every two; a ratio is by the mean of the two beside it. Prints conditions, and the median time per token of a choice and
ratios, as a table for docs/performance.md.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from bench.engine.page import cpu  # noqa: E402 - the repository is not installed when this runs from a checkout
from tests.real.processes import nproxy  # noqa: E402

MODEL = "smollm2-135m-instruct"
TOKENS = 64
PROMPT = "Describe a person, with a name, an age and three hobbies. " * 36

SCHEMA = {"type": "array", "items": {"type": "string", "minLength": 9}, "minItems": 40}
"""No answer of TOKENS tokens is whole, nor one of 400 letters."""
SETTINGS: dict[str, dict[str, Any]] = {
    "temperature 0": {"temperature": 0},
    "top_p 0.95": {"top_p": 0.95},
    "temperature 0.7, top_p 0.9": {"temperature": 0.7, "top_p": 0.9},
    "top_k 50": {"top_k": 50},
    "min_p 0.05": {"min_p": 0.05},
    "frequency_penalty 0.5": {"frequency_penalty": 0.5},
    "logprobs": {"logprobs": True},
    "logprobs, top_logprobs 5": {"logprobs": True, "top_logprobs": 5},
    "logprobs, top_logprobs 20": {"logprobs": True, "top_logprobs": 20},
    "stream": {"stream": True},
    "a JSON schema": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA}},
        "ignore_eos": False,
    },
    "a regular expression": {"structured_outputs": {"regex": "[a-z ]{400}"}, "ignore_eos": False},
}


async def ask(session: aiohttp.ClientSession, url: str, n: int, **more: Any) -> float:
    """Return the seconds that an answer takes, by its tokens per choice. Raises ValueError if it has not TOKENS."""
    messages = [{"role": "user", "content": PROMPT}]
    asked = {"model": MODEL, "messages": messages, "n": n, "max_tokens": TOKENS, "ignore_eos": True, "seed": 1, **more}
    began = time.perf_counter()
    async with session.post(f"{url}/v1/chat/completions", json=asked) as answer:
        text = await answer.text()
        seconds = time.perf_counter() - began
    if f'"completion_tokens":{n * TOKENS}' not in text and text.count('"finish_reason":"length"') != n:
        raise ValueError(f"{more}: {text[:500]}")
    return seconds / TOKENS


async def measure(url: str, n: int, rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Return for each setting, per round, the seconds per token and how many times as many as without it."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in SETTINGS}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        for more in SETTINGS.values():
            await ask(session, url, n, **more)  # grammars are compiled, and the prompt is in the cache
        plain = [await ask(session, url, n)]
        for _ in range(rounds):
            for name, more in SETTINGS.items():
                seconds = await ask(session, url, n, **more)
                plain.append(await ask(session, url, n))
                taken[name].append((seconds, 2 * seconds / (plain[-1] + plain[-2])))
    return {"none": [(seconds, 1.0) for seconds in plain], **taken}


def main() -> None:
    """Run the measurement and print it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--n", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder, nproxy(log=Path(folder) / "nproxy.log", seconds=300) as gateway:
        taken = asyncio.run(measure(gateway.url, options.n, options.rounds))
    machine = cpu(Path("/proc/cpuinfo").read_text())["cpu"]
    print(f"{len(os.sched_getaffinity(0))} cores of {machine}, n={options.n}, load average before: {load:.2f}\n")
    print("| settings | ms per token of each choice | by none |\n|---|---|---|")
    for name, rounds in taken.items():
        seconds, ratio = (statistics.median(one[i] for one in rounds) for i in (0, 1))
        print(f"| {name} | {1000 * seconds:.1f} | {ratio:.2f}x |")


if __name__ == "__main__":
    main()
