"""Measure what `resume` costs per chunk of an undisturbed stream: the merge alone, without sockets.

    python -m bench.resume [--rounds 20]

Chunks of one choice, rewritten as bytes, go through the merge, with each setting in turn; the best round counts.
"""

from __future__ import annotations

import argparse
import json
import platform
import time

from nproxy.choices.leg import Leg
from nproxy.choices.merge import Merge
from nproxy.choices.relay import Relay
from nproxy.choices.resume import Resume, recorder
from nproxy.openai.body import Body
from nproxy.openai.requests import Limits, Request, parse_chat

CHUNKS = 2000
SETTINGS: tuple[Resume, ...] = ("off", "replay", "continue")


def request(n: int) -> Request:
    """Return a streamed chat request for n choices."""
    asked = {"model": "m", "n": n, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    return parse_chat(Body.parse(json.dumps(asked).encode()), Limits())


def chunks() -> list[bytes]:
    """Return a stream as vLLM writes it: a token of a few letters in each chunk, some escaped or not ASCII."""
    words = [" the", " word", "\n", " é", '"']
    shared = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return [
        json.dumps(
            {**shared, "choices": [{"index": 0, "delta": {"content": words[i % 5]}, "finish_reason": None}]},
            ensure_ascii=False,
            separators=(",", ":"),
        ).encode()
        for i in range(CHUNKS)
    ]


def nanoseconds(asked: Request, how: Resume, stream: list[bytes]) -> float:
    """Return the time per chunk in one round."""
    kind = Relay if asked.n == 1 else Merge
    merge = kind(asked, "id", 1, "m", record=recorder(asked, how))
    merge.legs.add(Leg(0, 0, 1))
    started = time.perf_counter_ns()
    for data in stream:
        merge.chunk(0, data)
    return (time.perf_counter_ns() - started) / len(stream)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    rounds: int = parser.parse_args().rounds
    stream = chunks()
    print(f"Python {platform.python_version()}, {CHUNKS} chunks, best of {rounds} rounds; ns per chunk (ratio to off)")
    for name, n in (("relay, n=1", 1), ("fan-out, n=2", 2)):
        asked = request(n)
        best = {how: float("inf") for how in SETTINGS}
        for _ in range(rounds):  # alternating, so that other load affects all settings alike
            for how in SETTINGS:
                best[how] = min(best[how], nanoseconds(asked, how, stream))
        told = ", ".join(f"{how} {best[how]:.0f} ({best[how] / best['off']:.2f})" for how in SETTINGS)
        print(f"{name}: {told}")


if __name__ == "__main__":
    main()
