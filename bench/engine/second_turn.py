"""Measure how much sooner a chat's second turn starts than its first: time to the first piece of text, over HTTP.

    python bench/engine/second_turn.py [--prompt 1499] [--rounds 5]

Starts `nproxy serve` with the default model. Each round is a chat of its own of about --prompt tokens: the first turn
is streamed to its end, then a second turn follows with that answer and a short question. For the second turn the engine
computes only what is new, and the tokens of an incomplete block. Prints conditions, medians and the ratio, and writes
them to bench/results/second_turn.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiohttp

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.real.processes import nproxy  # noqa: E402 - the repository is not installed when this runs from a checkout

MODEL = "smollm2-135m-instruct"
TOKENS = 48  # max_tokens of each answer
WORDS = (  # noqa: SIM905 (a list of forty strings reads worse)
    "the keeper walked along a grey shore and counted seven small boats that came home late with little fish while"
    " wind from north brought rain over old stones where children once had played with ropes nets and broken oars"
).split()


@dataclass(frozen=True)
class Turn:
    """One answer: seconds to its first piece of text, its text, and what its usage says about the prompt."""

    seconds: float
    text: str
    prompt_tokens: int
    cached_tokens: int


async def turn(session: aiohttp.ClientSession, url: str, messages: list[dict[str, str]]) -> Turn:
    """Ask, and read the answer to its end. Raises RuntimeError if it has no text."""
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": messages,
        "max_tokens": TOKENS,
        "temperature": 0,
        "stream": True,
    }
    body["stream_options"] = {"include_usage": True}
    usage: dict[str, Any] = {}
    began, first, text = time.perf_counter(), None, ""
    async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line.removeprefix(b"data: "))
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                if piece := choice["delta"].get("content"):
                    first = first or time.perf_counter() - began
                    text += piece
    if first is None:
        raise RuntimeError("the answer had no text")
    return Turn(first, text, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"])


async def chat(session: aiohttp.ClientSession, url: str, tokens: int, seed: int) -> tuple[Turn, Turn]:
    """Run the first two turns of a chat with a text of its own; nearly every word of this vocabulary is one token."""
    story = " ".join(random.Random(seed).choices(WORDS, k=tokens - 60))
    messages = [{"role": "user", "content": f"Chat {seed}. Read this and say what you like in it: {story}"}]
    first = await turn(session, url, messages)
    messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "Why? Say it in one line."}]
    return first, await turn(session, url, messages)


async def measure(url: str, tokens: int, rounds: int) -> list[tuple[Turn, Turn]]:
    """Run the rounds after one that does not count: the first request of a process is slower."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        return [await chat(session, url, tokens, seed) for seed in range(rounds + 1)][1:]


def main() -> None:
    """Run the measurement, print it and write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--prompt", type=int, default=1499, help="tokens of the first turn, about")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    if load > 0.5:
        print("The machine is busy with something else: run this again when it is not.")
    with tempfile.TemporaryDirectory() as folder, nproxy(log=Path(folder) / "nproxy.log", seconds=300) as gateway:
        turns = asyncio.run(measure(gateway.url, options.prompt, options.rounds))
    first, second = (statistics.median(pair[which].seconds for pair in turns) for which in (0, 1))
    conditions = {
        "cores": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "model": MODEL,
        "rounds": options.rounds,
        "load_average_before": round(load, 2),
    }
    report = {
        "conditions": conditions,
        "first_turn_ms": round(first * 1000, 1),
        "second_turn_ms": round(second * 1000, 1),
        "ratio": round(first / second, 1),
        "rounds": [
            [{key: value for key, value in asdict(one).items() if key != "text"} for one in pair] for pair in turns
        ],
    }
    for key, value in conditions.items():
        print(f"{key:20} {value}")
    for number, (one, two) in enumerate(turns):
        print(
            f"round {number}: {one.prompt_tokens} tokens ({one.cached_tokens} cached) {one.seconds * 1000:.0f} ms,"
            f" then {two.prompt_tokens} ({two.cached_tokens} cached) {two.seconds * 1000:.0f} ms"
        )
    print(f"first turn {first * 1000:.0f} ms, second turn {second * 1000:.0f} ms: {first / second:.1f} times sooner")
    (ROOT / "bench/results/second_turn.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
