"""The messages between admission client and ledger: plain frozen types, sent as JSON arrays between processes.

They are msgspec's, because there are three for each request: one takes 0.3 us to write or read, with pydantic 5.
"""

from __future__ import annotations

from typing import Literal, TypeVar

import msgspec

from nproxy.gateway.callers import UNLIMITED, Rates

Kind = Literal["requests", "choices", "tokens"]
"""The rates: what is limited per minute."""

Reason = Literal["too_wide", "requests", "choices", "tokens", "queue_full", "timeout", "draining"]
"""Why a request is refused. too_wide: it can never fit. requests, choices, tokens: that rate of its key is reached."""


class Ask(msgspec.Struct, frozen=True, array_like=True, tag="ask"):
    """Ask for the permits of a request."""

    ticket: str
    """Identifies the request's permits."""
    key: str
    """The key against whose limits the request counts."""
    upstream: str
    """Where it is to be sent."""
    choices: int
    """The permits it needs, all at once."""
    tokens: int = 0
    """An estimate of what it will spend."""
    weight: float = 1.0
    """The key's share, against those of other keys that wait."""
    most: int | None = None
    """The most choices of the key in flight; None for no limit."""
    rates: Rates = UNLIMITED
    """The key's limits per minute."""
    waits: bool = True
    """Whether it waits if it does not fit now; else it is refused."""


class Move(msgspec.Struct, frozen=True, array_like=True, tag="move"):
    """Move a request's permits to another upstream."""

    ticket: str
    upstream: str


class Leave(msgspec.Struct, frozen=True, array_like=True, tag="leave"):
    """End a request, whether it waits or holds permits. tokens: those it spent; if None, the estimate stands."""

    ticket: str
    tokens: int | None = None


class Level(msgspec.Struct, frozen=True, array_like=True):
    """How much of one rate a key has spent: in `behind` seconds, nothing that it has spent counts any more."""

    what: Kind
    limit: int
    behind: float


class Admitted(msgspec.Struct, frozen=True, array_like=True, tag="admitted"):
    """The request has its permits, or they have moved. levels: of the key's rates, with this request counted."""

    ticket: str
    levels: tuple[Level, ...] = ()


class Refused(msgspec.Struct, frozen=True, array_like=True, tag="refused"):
    """The request gets no permits.

    If it wanted to move, it keeps its permits under the total and the key's limit, but has none at any upstream.
    """

    ticket: str
    """The request's ticket."""
    reason: Reason
    """Why it is refused."""
    retry_after: float = 0.0
    """Seconds after which another try may succeed."""
    limit: int = 0
    """The limit that it exceeds by itself, for too_wide."""
    full: bool = False
    """Until a RoomAgain message comes, all requests of this key would be refused, even for one choice."""
    levels: tuple[Level, ...] = ()
    """The levels of the key's rates."""


class RoomAgain(msgspec.Struct, frozen=True, array_like=True, tag="room"):
    """Permits or places in the queue have become free since a request was refused as `full`. Sent to all clients."""


class Returned(msgspec.Struct, frozen=True, array_like=True, tag="returned"):
    """What a key was charged is corrected, because one of its requests waits no more or has ended. Sent to all clients.

    levels: of its rates, as they are now.
    """

    key: str
    levels: tuple[Level, ...]


Message = Ask | Move | Leave
Answer = Admitted | Refused | RoomAgain | Returned

_T = TypeVar("_T")

_encoder = msgspec.json.Encoder()
_messages = msgspec.json.Decoder(Message)
_answers = msgspec.json.Decoder(Answer)


def to_bytes(message: Message | Answer) -> bytes:
    """Write a message, as an array of JSON."""
    return _encoder.encode(message)


def message_of(data: bytes) -> Message:
    """Read what an admission client sent. Raises ValueError for anything else."""
    return _read(_messages, data)


def answer_of(data: bytes) -> Answer:
    """Read what a ledger sent. Raises ValueError for anything else."""
    return _read(_answers, data)


def _read(decoder: msgspec.json.Decoder[_T], data: bytes) -> _T:
    try:
        return decoder.decode(data)
    except msgspec.DecodeError:
        raise ValueError("no message of admission control") from None
