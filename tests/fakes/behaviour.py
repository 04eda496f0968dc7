"""How a scripted upstream answers one generation call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

MODEL = "fake-model"

Piece = str | dict[str, Any]
"""What one chunk says: content, or a whole delta."""

Quirk = Callable[[list[Any]], list[Any]]
"""Changes the chunks of a stream before they are sent: dicts become events, bytes are sent as they are."""


def words(seed: int) -> list[str]:
    """The pieces of text that a choice with this seed streams."""
    return [f"seed {seed}", " says", f" {seed * 7 % 101}", "."]


def said(seed: int) -> str:
    """The text of a choice with this seed."""
    return "".join(words(seed))


def event(data: bytes) -> bytes:
    """An event as most servers write it."""
    return b"data: " + data + b"\n\n"


@dataclass
class Behaviour:
    """How one generation call is answered. By default with one choice, whatever `n` says, and with usage."""

    n: Literal["ignore", "native", "refuse"] = "ignore"
    width: int | None = None  # for native: at most so many choices
    refuse: tuple[str, ...] = ()  # body fields answered with a 400 that names them
    pieces: Callable[[int], Sequence[Piece]] = words
    finish: str | Callable[[int], str | None] | None = "stop"  # None: choices end without a finish_reason
    usage: bool | Callable[[list[int]], dict[str, Any]] = True  # a function gets the seeds of the call's choices
    role: bool = True  # streams begin with a role chunk
    done: bool = True
    behind_done: bytes = b""  # sent together with `[DONE]`
    close: asyncio.Event | None = None  # wait for this before the end of a stream that has said everything
    hold: asyncio.Event | None = None  # wait for this before the head
    hold_after: int | None = None  # wait for `go_on` after so many chunks
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    pause: float = 0.0  # seconds before each chunk, or before a whole answer
    pings: int = 0  # comments before the first event, `ping_pause` seconds apart
    ping_pause: float = 0.02
    end_after: int | None = None  # after so many chunks, the answer ends as `end` says
    end: Literal["reset", "cut", "close", "malformed", "error"] = "cut"
    before_head: Literal["", "reset", "close"] = ""
    status: int = 200
    body: bytes | None = None  # sent unchanged, with `content_type`
    content_type: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    quirk: Quirk | None = None
    whole_quirk: Callable[[dict[str, Any]], Any] | None = None  # the same for an answer in JSON form
    frame: Callable[[bytes], bytes] = event
    preamble: bytes = b""  # before the first event of a stream
    newline: bytes = b"\n"
    segment: int | None = None  # write streams, and `body`, in pieces of so many bytes
    one_at_a_time: bool = False  # calls wait for each other; a stream for which one waits ends with `[DONE]`
    request_id: bool = True  # False: an empty 400 if the request id is not a UUID
    one_write: bool = False  # write a stream in one piece
    json_for_stream: bool = False
    logprobs: bool = True  # send log probabilities if they are requested

    def let_go(self) -> None:
        """Let calls that are held go on."""
        assert self.hold is not None
        self.hold.set()
