"""One request of eight choices as its client sees it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import httpx

from nproxy.openai.sse import SSEDecoder

CHOICES = 8
PROMPT = "Tell a long story about a lighthouse keeper, a storm and a very small boat."
SEED = 7


@dataclass(frozen=True, slots=True)
class Scene:
    """The request to play. url: without a path."""

    url: str
    endpoint: str
    model: str
    tokens: int

    def body(self) -> dict[str, Any]:
        chat = self.endpoint.endswith("chat/completions")
        prompt = {"messages": [{"role": "user", "content": PROMPT}]} if chat else {"prompt": PROMPT}
        drawn = {"n": CHOICES, "seed": SEED, "temperature": 1.0, "max_tokens": self.tokens}
        return {"model": self.model, **prompt, **drawn, "stream": True}


@dataclass(frozen=True, slots=True)
class Seen:
    """What the client received."""

    texts: tuple[str, ...]
    """The text of each choice."""
    finished: int
    """How many choices have a finish_reason."""
    end: str
    """`complete`, `error event`, `cut` (the connection broke), `silent end` (the stream ended as if all were well), or
    a status."""
    longest_silence: float
    """The longest time without an event, in seconds."""
    seconds: float
    """Seconds from the request to the end."""
    equal: int = 0
    """How many choices have the same text as in the undisturbed run."""
    error: str = ""
    """The error event, the name of the exception, or the body of an error status."""

    def beside(self, undisturbed: Seen) -> Seen:
        """Return the same with `equal` computed from an undisturbed run."""
        pairs = zip(self.texts, undisturbed.texts, strict=True)
        return replace(self, equal=sum(mine == theirs != "" for mine, theirs in pairs))


def play(scene: Scene, kill: Callable[[], None] | None = None) -> Seen:
    """Send the request and read the answer.

    kill: called as soon as every choice has sent at least four pieces of text.
    """
    texts, reasons, done, error = [""] * CHOICES, [""] * CHOICES, False, ""
    began = last = time.monotonic()
    silence = 0.0
    spoken: dict[int, int] = {}
    end = ""
    try:
        with httpx.stream(
            "POST", scene.url + scene.endpoint, json=scene.body(), timeout=180, trust_env=False
        ) as answer:
            if answer.status_code != 200:
                answer.read()
                return Seen(tuple(texts), 0, str(answer.status_code), 0.0, 0.0, error=answer.text[:200])
            for data in _events(answer):
                now = time.monotonic()
                silence, last = max(silence, now - last), now
                if data == b"[DONE]":
                    done = True
                    continue
                event = json.loads(data)
                if "error" in event:
                    error = json.dumps(event["error"])[:200]
                    continue
                for choice in event.get("choices", ()):
                    said = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
                    texts[choice["index"]] += said
                    spoken[choice["index"]] = spoken.get(choice["index"], 0) + bool(said)
                    reasons[choice["index"]] = choice.get("finish_reason") or reasons[choice["index"]]
                if kill is not None and len(spoken) == CHOICES and min(spoken.values()) >= 4:
                    kill()
                    kill = None
    except httpx.TransportError as broken:
        end, error = "cut", type(broken).__name__
    finished = sum(map(bool, reasons))
    if not end:
        end = "error event" if error else "complete" if finished == CHOICES and done else "silent end"
    return Seen(tuple(texts), finished, end, round(silence, 3), round(time.monotonic() - began, 3), error=error)


def _events(answer: httpx.Response) -> Iterator[bytes]:
    """The data of each event. `iter_lines` would end a line within an event, too, at U+0085 or U+2028 in its text."""
    decoder = SSEDecoder()
    for part in answer.iter_bytes():
        yield from (event.data for event in decoder.feed(part))
