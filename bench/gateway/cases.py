"""The loads for every gateway, as data."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

CHAT = "/v1/chat/completions"
MODEL = "bench"
PACES = (500, 400, 300, 200, 100, 50)
"""Chunks per second of each stream; the first pace that the machine can hold without a gateway is used."""

SAID = 'They asked: "Is it so?"\nIt was said - more or less - that `x < 1` holds.\n'
"""As long prompts are: with quotes and line ends, which JSON escapes."""

PACE_HELD = 0.9
"""Share of a requested pace that must arrive for it to count as held: between two streams there is a request."""


@dataclass(frozen=True, slots=True)
class Case:
    """A load."""

    says: str
    """What it measures, for readers of the table."""
    connections: int
    """How many connections ask at once, each one request after the other."""
    n: int = 1
    chunks: int = 64
    """Chunks of each choice; a JSON answer has as many words."""
    stream: bool = True
    pace: int = 0
    """Chunks per second of each stream; 0: as fast as they are read."""
    answers: int = 0
    """The number of answers after which it ends; 0: it ends after a time."""
    pause_ms: int = 0
    """Milliseconds between an answer and the next request."""
    history: int = 0
    """Bytes of what was said before the question."""
    think_ms: int = 0
    """Milliseconds that the upstream takes from the request to the first chunk."""

    @property
    def unit(self) -> str:
        """What is counted: "chunks", or "choices" of whole answers."""
        return "chunks" if self.stream else "choices"

    @property
    def wanted(self) -> float:
        """The rate that a gateway should reach: its pace, infinity for as much as it can, 0 for no specific rate."""
        if self.answers:
            return 0.0
        return PACE_HELD * self.pace * self.connections * self.n if self.pace else math.inf

    def unmerged(self) -> Case:
        """Return the same legs, each as a request of its own: what a relay without n can do."""
        return replace(self, connections=self.connections * self.n, n=1)

    def request(self, port: int, headers: Mapping[str, str], path: str = CHAT) -> bytes:
        """Return the bytes of one request; its last message tells the upstream how to answer."""
        asked = f"chunks={self.chunks} pace={self.pace}" + (f" think={self.think_ms}" if self.think_ms else "")
        body = {
            "model": MODEL,
            "messages": [
                {"role": "system", "content": "You are a helpful assistant." + SAID * (self.history // len(SAID))},
                {"role": "user", "content": asked},
            ],
            "max_tokens": self.chunks,
            **({"n": self.n} if self.n > 1 else {}),
            "stream": self.stream,
        }
        text = json.dumps(body, separators=(",", ":")).encode()  # as OpenAI's libraries write it
        said = {
            "Host": f"127.0.0.1:{port}",
            "Content-Type": "application/json",
            "Content-Length": str(len(text)),
            **headers,
        }
        lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in said.items()), "", ""]
        return "\r\n".join(lines).encode() + text


CASES: Mapping[str, Case] = {
    "whole-16": Case("whole answers, 16 connections", 16, chunks=16, stream=False),
    "whole-64": Case("whole answers, 64 connections", 64, chunks=16, stream=False),
    "long-64": Case("whole answers to 8 kB, 64 connections", 64, chunks=16, stream=False, history=8000),
    "burst": Case("64 streams at once, as fast as they go", 64),
    "paced": Case("128 streams at a pace", 128, pace=500),
    "first": Case("one stream after the other", 1, chunks=8, answers=200, pause_ms=2),
    "n8-whole": Case("8 requests of n=8 at once, whole answers", 8, n=8, chunks=16, stream=False),
    "n8-burst": Case("32 requests of n=8 at once, as fast as they go", 32, n=8),
    "n8-paced": Case("32 requests of n=8 at a pace", 32, n=8, pace=500),
    "n8-first": Case("one request of n=8 after the other", 1, n=8, chunks=8, answers=200, pause_ms=2),
}

_THOUGHT = replace(CASES["first"], says="one stream at a time, each after 20 ms", answers=50, pace=200, think_ms=20)
IN_TURNS: Mapping[str, Case] = {
    **CASES,
    "first-thought": _THOUGHT,
    "n8-first-thought": replace(_THOUGHT, says="one request of n=8 at a time, each after 20 ms", n=8),
}
"""Also loads that take longer: as of a server that reads the prompt, while the gateway's core sleeps."""
