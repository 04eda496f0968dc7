"""Measure what the pure middle costs, without sockets: an event of a stream, and a request with its answer.

    python -m bench.middle [--rounds 15] [--calls | --instructions] [case ...]

A stream goes from the bytes of a segment through decoder and conduct to the bytes for the client; a request goes from
the bytes of its body through plan and compose to the whole answer. The figures are CPU microseconds of the best round;
with --calls, the number of function calls, in Python and C; with --instructions, the CPU instructions that valgrind
counts. Neither of these two depends on other load on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from nproxy.choices.capability import Capability
from nproxy.choices.commands import Command, Emit, OpenLeg, Respond
from nproxy.choices.compose import compose
from nproxy.choices.conduct import Conduct
from nproxy.choices.events import Event, LegBody, LegEnded
from nproxy.choices.plan import make_plan
from nproxy.choices.segments import read_segment
from nproxy.choices.settings import ConductSettings, Names
from nproxy.openai.body import Body
from nproxy.openai.requests import Limits, Request, parse_chat
from nproxy.openai.sse import SSEDecoder

CHUNKS = 512
"""Events of a choice: so many that one-time work hardly counts."""
REQUESTS = 64
WORDS = (" the", " word", "\n", " é", '"')
QUOTED = 'She said "so it is" \N{EM DASH} and wrote:\n```python\ndef f(x):\n    return x + 1\n```\n'
"""Of a long prompt: with quotes and line ends, which JSON escapes."""

FANOUT = Capability(native_width=1)
EXACT = Capability(native_width=None, exact=True)

Work = Callable[[], int]
"""Does some work; returns the number of events, or of requests, that it handled."""


# ---- what goes in


def asked(prompt: int = 280, **fields: object) -> bytes:
    """Return the body of a chat request, with so many letters of prompt, as OpenAI's libraries write it."""
    user = QUOTED * (prompt // len(QUOTED)) if prompt > 1000 else "Why is it so? " * (prompt // 14)
    messages = [{"role": "system", "content": "You are terse."}, {"role": "user", "content": user}]
    return dumped({"model": "m", "messages": messages, "temperature": 0.7, "max_tokens": 64, **fields})


def chunk(index: int, word: str, beside: dict[str, Any] | None = None, **more: object) -> bytes:
    """Return a frame as vLLM writes it. beside: members of the chunk. more: members of the choice."""
    choice = {"index": index, "delta": {"content": word}, "logprobs": None, "finish_reason": None, **more}
    head = {"id": "chatcmpl-98e629529c5c2b79", "object": "chat.completion.chunk", "created": 1795146502, "model": "m"}
    return b"data: " + dumped({**head, "choices": [choice], **(beside or {})}) + b"\n\n"


def escaped(index: int, word: str) -> bytes:
    """Return a frame as servers write it that use Python's `json.dumps` as it comes, such as mlx-lm."""
    value = json.loads(chunk(index, word.replace("word", "\N{CJK UNIFIED IDEOGRAPH-8A9E}"))[6:])
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def counted(index: int, word: str) -> bytes:
    """Return a frame with usage, as Gemini sends one with each chunk."""
    so_far = len(word) + ord(word[-1])
    usage = {"prompt_tokens": 111, "completion_tokens": so_far, "total_tokens": 111 + so_far}
    return chunk(index, word, {"usage": usage})


def dumped(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def logprobs(word: str) -> dict[str, Any]:
    """Return log probabilities as OpenAI returns them, with two alternatives."""
    top = [{"token": other, "logprob": -0.25, "bytes": list(other.encode())} for other in (word, " a")]
    return {"content": [{**top[0], "top_logprobs": top}]}


def called(word: str) -> dict[str, object]:
    """Return a delta with a piece of a tool call's arguments."""
    return {"tool_calls": [{"index": 0, "function": {"arguments": word}}]}


def answer(words: int = 60, *, rated: bool = False) -> bytes:
    """Return the body of a whole answer. rated: with log probabilities."""
    message = {"role": "assistant", "content": "Because it is. " * (words // 3), "refusal": None, "tool_calls": []}
    logs = {"content": [logprobs(" word")["content"][0]] * words} if rated else None
    choice = {"index": 0, "message": message, "logprobs": logs, "finish_reason": "stop", "stop_reason": None}
    usage = {"prompt_tokens": 111, "completion_tokens": 64, "total_tokens": 175, "prompt_tokens_details": None}
    head = {"id": "chatcmpl-98e629529c5c2b79", "object": "chat.completion", "created": 1795146502, "model": "m"}
    return dumped({**head, "choices": [choice], "usage": usage})


# ---- the work


def planned(raw: bytes, capability: Capability) -> tuple[Request, Conduct]:
    """Take a request from its bytes to its conduct, as the gateway does."""
    request = parse_chat(Body.parse(raw), Limits())
    plan = make_plan(request, capability, lambda: 7)
    settings, names = ConductSettings(), Names("chatcmpl-own", 1795146502, request.model)
    return request, Conduct(
        request, plan, capability, settings, names, budget=lambda: True, jitter=lambda: 0.5, draw=lambda: 7
    )


def written(commands: list[Command]) -> int:
    """Return the number of bytes for the client."""
    return sum(len(command.data) for command in commands if isinstance(command, Emit))


def stream(
    n: int, capability: Capability, *, batch: int = 1, turn: int = 1, frame: Callable[[int, str], bytes] = chunk
) -> Work:
    """Return the work of streaming n choices.

    batch: events in each segment of a leg. turn: segments that the conduct takes at once.
    """
    raw = asked(stream=True, n=n, stream_options={"include_usage": True})
    legs = 1 if n == 1 or capability.exact else n
    frames = [[frame(index if legs == 1 else 0, WORDS[i % 5]) for i in range(CHUNKS)] for index in range(n)]
    lines = frames if legs > 1 else [[one for row in zip(*frames, strict=True) for one in row]]
    cut = [[b"".join(line[at : at + batch]) for at in range(0, len(line), batch)] for line in lines]
    segments = [(leg, row[leg]) for row in zip(*cut, strict=True) for leg in range(legs)]
    turns = [segments[at : at + turn] for at in range(0, len(segments), turn)]

    def work() -> int:
        _, conduct = planned(raw, capability)
        conduct.start()
        decoders = [SSEDecoder() for _ in range(legs)]
        size = 0
        for turned in turns:
            events: list[Event] = []
            for leg, segment in turned:
                events += read_segment(leg, decoders[leg], segment)
            size += written(conduct.receive(events))
        assert size > n * CHUNKS * 100
        return n * CHUNKS

    return work


def whole(n: int, *, prompt: int = 280, body: bytes | None = None) -> Work:
    """Return the work of answering requests for n choices that are not streamed. body: of each upstream answer."""
    raw, capability, body = asked(prompt, n=n), FANOUT, body or answer()

    def work() -> int:
        for _ in range(REQUESTS):
            request, conduct = planned(raw, capability)
            opened = [command.leg for command in conduct.start() if isinstance(command, OpenLeg)]
            said: list[Command] = []
            for leg in opened:
                bytes(compose(request, capability, leg))
                said = conduct.receive([LegBody(leg.number, body), LegEnded(leg.number)])
            assert any(isinstance(command, Respond) and command.status == 200 for command in said)
        return REQUESTS

    return work


CASES: dict[str, Work] = {
    "relay, n=1": stream(1, FANOUT),
    "relay, n=1, 4 at once": stream(1, FANOUT, batch=4),
    "merge, n=8": stream(8, FANOUT),
    "merge, n=8, 4 at once": stream(8, FANOUT, batch=4),
    "merge, n=8, a turn takes 8": stream(8, FANOUT, turn=8),
    "relay, n=8": stream(8, EXACT),
    "relay, n=8, 8 at once": stream(8, EXACT, batch=8),
    "relay, n=1, logprobs": stream(1, FANOUT, frame=lambda index, word: chunk(index, word, logprobs=logprobs(word))),
    "merge, n=8, logprobs": stream(8, FANOUT, frame=lambda index, word: chunk(index, word, logprobs=logprobs(word))),
    "relay, n=1, tool calls": stream(1, FANOUT, frame=lambda index, word: chunk(index, word, delta=called(word))),
    "merge, n=8, tool calls": stream(8, FANOUT, frame=lambda index, word: chunk(index, word, delta=called(word))),
    "merge, n=8, escapes": stream(8, FANOUT, frame=escaped),
    "merge, n=8, usage in each": stream(8, FANOUT, frame=counted),
    "whole, n=1": whole(1),
    "whole, n=1, 8 kB asked": whole(1, prompt=8000),
    "whole, n=1, 60 kB asked": whole(1, prompt=60000),
    "whole, n=1, 8 kB answered": whole(1, body=answer(1600)),
    "whole, n=1, 500 logprobs": whole(1, body=answer(500, rated=True)),
    "whole, n=8": whole(8),
    "whole, n=8, 8 kB asked": whole(8, prompt=8000),
    "whole, n=8, 500 logprobs": whole(8, body=answer(500, rated=True)),
}


# ---- the figures


def microseconds(names: list[str], rounds: int) -> dict[str, float]:
    """Return the CPU time of this process per event or request, of the best round; each round runs all cases once."""
    best = dict.fromkeys(names, float("inf"))
    for _ in range(rounds):
        for name in names:
            began = time.process_time_ns()
            done = CASES[name]()
            best[name] = min(best[name], (time.process_time_ns() - began) / done / 1000)
    return best


def calls(name: str) -> float:
    """Return the number of functions called per event or request, in Python and C."""
    counted = 0

    def count(_frame: object, what: str, _arg: object) -> None:
        nonlocal counted
        counted += what in ("call", "c_call")

    CASES[name]()
    sys.setprofile(count)
    done = CASES[name]()
    sys.setprofile(None)
    return counted / done


def instructions(name: str) -> float:
    """Return thousands of instructions per event or request: four runs minus two runs exclude one-time work."""
    few, many = (_counted(name, times) for times in (2, 4))
    return (many - few) / (2 * CASES[name]()) / 1000


def _counted(name: str, times: int) -> int:
    command = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    command += [sys.executable, "-m", "bench.middle", "--times", str(times), name]
    fixed = {"PYTHONMALLOC": "malloc", "PYTHONHASHSEED": "0"}
    told = subprocess.run(command, env=os.environ | fixed, capture_output=True, text=True, check=True).stderr
    found = re.search(r"I\s+refs:\s+([\d,]+)", told)
    assert found is not None
    return int(found[1].replace(",", ""))


def figures(names: list[str], options: argparse.Namespace) -> Iterator[tuple[str, float]]:
    if options.calls:
        yield from ((name, calls(name)) for name in names)
    elif options.instructions:
        yield from ((name, instructions(name)) for name in names)
    else:
        yield from microseconds(names, options.rounds).items()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", nargs="*", help=f"one of: {'; '.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--times", type=int, help="do it so many times, and tell nothing")
    parser.add_argument("--calls", action="store_true")
    parser.add_argument("--instructions", action="store_true")
    options = parser.parse_args()
    names = options.case or list(CASES)
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"there is no case {unknown[0]!r}")
    if options.times:
        for name in names * options.times:
            CASES[name]()
        return
    unit = "calls" if options.calls else "thousand instructions" if options.instructions else "us of CPU"
    print(f"Python {platform.python_version()}; {unit} for each event or request")
    for name, figure in figures(names, options):
        print(f"{name:28} {figure:8.2f}", flush=True)


if __name__ == "__main__":
    main()
