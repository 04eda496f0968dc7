"""What a client asks, and how a request can end."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["ok", "wrong", "refused", "error", "cut", "left", "hang"]
How = Literal["close", "reset", "half-close"]


@dataclass(frozen=True, slots=True)
class Ask:
    """One request."""

    seed: int
    n: int
    tokens: int
    stream: bool = True
    leave: float | None = None
    """Seconds after which the client disconnects; None: it stays."""
    how: How = "close"
    """How it disconnects."""
    cuts: bool = False
    """Whether the upstream's answers are cut. A cut after the text leaves the usage unknown, so it may be missing."""

    def http(self, key: str) -> bytes:
        """Return the request's bytes."""
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
    """How a request ended."""

    kind: Kind
    """ok: every byte of every choice was right, and nothing was missing. refused: 429 or 503 before the stream began.
    error: another status, or an error event. cut: the connection ended before the answer. left: the client
    disconnected."""
    detail: str = ""
    status: int = 0
    seconds: float = 0.0
    """Seconds to its end."""
    first: float | None = None
    """Seconds to its first text."""
    port: int = 0
    """The client's port."""
