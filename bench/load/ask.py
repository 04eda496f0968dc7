"""What a client asks, and how that can end."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["ok", "wrong", "refused", "error", "cut", "left", "hang"]
How = Literal["close", "reset", "half-close"]


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. leave: after so many seconds the client goes, in the way of `how`.

    cuts: answers of the upstream are cut, and where that is behind the text, nobody knows what it cost: an answer may
    lack its usage.
    """

    seed: int
    n: int
    tokens: int
    stream: bool = True
    leave: float | None = None
    how: How = "close"
    cuts: bool = False

    def http(self, key: str) -> bytes:
        """The request's bytes."""
        body: dict[str, Any] = {
            "model": "load",
            "messages": [{"role": "user", "content": "Say what your seed says."}],
            "n": self.n,
            "seed": self.seed,
            "max_tokens": self.tokens,
        }
        if self.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        data = json.dumps(body).encode()
        authorization = f"Authorization: Bearer {key}\r\n" if key else ""
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: load\r\n{authorization}Content-Type: application/json\r\n"
        return head.encode() + b"Content-Length: %d\r\n\r\n" % len(data) + data


@dataclass(slots=True)
class Outcome:
    """How a request ended.

    ok: every byte of every choice was right, and nothing was missing. refused: 429 or 503 before the stream began.
    error: another status, or an error event. cut: the connection ended before the answer. seconds: to its end. first:
    to its first text. port: the client's.
    """

    kind: Kind
    detail: str = ""
    status: int = 0
    seconds: float = 0.0
    first: float | None = None
    port: int = 0
