"""What is asked of every gateway, as data."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

CHAT = "/v1/chat/completions"
MODEL = "bench"
PACES = (500, 400, 300, 200, 100, 50)
"""Chunks a second of each stream, of which the first is taken that the machine holds without a gateway."""

PACE_HELD = 0.9
"""What share of an asked pace must arrive for it to count as held: between two streams there is a question."""


@dataclass(frozen=True, slots=True)
class Case:
    """A load. says: what it measures, for the table's reader.

    connections: how many ask at once, one question after the other. chunks: of each choice; a whole answer has as many
    words. pace: chunks a second of each stream; 0: as many as are read. answers: after how many it is over; 0: after a
    time. pause_ms: between an answer and the next question.
    """

    says: str
    connections: int
    n: int = 1
    chunks: int = 64
    stream: bool = True
    pace: int = 0
    answers: int = 0
    pause_ms: int = 0

    @property
    def unit(self) -> str:
        """What is counted: "answers" or "chunks"."""
        return "chunks" if self.stream else "answers"

    @property
    def wanted(self) -> float:
        """The rate that a gateway is asked for: its pace, all that it can do, or none in particular."""
        if self.answers:
            return 0.0
        return PACE_HELD * self.pace * self.connections * self.n if self.pace else math.inf

    def unmerged(self) -> Case:
        """The same legs, each as a request of its own: what a relay without n can be asked."""
        return replace(self, connections=self.connections * self.n, n=1)

    def request(self, port: int, headers: Mapping[str, str], path: str = CHAT) -> bytes:
        """The bytes of one question; the last message says to the upstream how it is answered."""
        body = {
            "model": MODEL,
            "messages": [
                {"role": "system", "content": "You are a helpful assistant."},
                {"role": "user", "content": f"chunks={self.chunks} pace={self.pace}"},
            ],
            "max_tokens": self.chunks,
            **({"n": self.n} if self.n > 1 else {}),
            "stream": self.stream,
        }
        text = json.dumps(body).encode()
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
    "burst": Case("64 streams at once, as fast as they go", 64),
    "paced": Case("128 streams at a pace", 128, pace=500),
    "first": Case("one stream after the other", 1, chunks=8, answers=200, pause_ms=2),
    "n8-burst": Case("32 requests of n=8 at once, as fast as they go", 32, n=8),
    "n8-paced": Case("32 requests of n=8 at a pace", 32, n=8, pace=500),
    "n8-first": Case("one request of n=8 after the other", 1, n=8, chunks=8, answers=200, pause_ms=2),
}
