"""The messages between admission client and ledger: plain frozen types, sent as JSON between processes."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from nproxy.gateway.callers import Rates
from nproxy.openai.frozen import frozen

Kind = Literal["requests", "choices", "tokens"]
"""The rates: what is limited per minute."""

Reason = Literal["too_wide", "requests", "choices", "tokens", "queue_full", "timeout", "draining"]
"""Why a request is refused. too_wide: it can never fit. requests, choices, tokens: that rate of its key is reached."""


@frozen
class Ask:
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
    rates: Rates = field(default_factory=Rates)
    """The key's limits per minute."""
    waits: bool = True
    """Whether it waits if it does not fit now; else it is refused."""
    kind: Literal["ask"] = "ask"


@frozen
class Move:
    """Move a request's permits to another upstream."""

    ticket: str
    upstream: str
    kind: Literal["move"] = "move"


@frozen
class Leave:
    """End a request, whether it waits or holds permits. tokens: those it spent; if None, the estimate stands."""

    ticket: str
    tokens: int | None = None
    kind: Literal["leave"] = "leave"


@frozen
class Level:
    """How much of one rate a key has spent: in `behind` seconds, nothing that it has spent counts any more."""

    what: Kind
    limit: int
    behind: float


@frozen
class Admitted:
    """The request has its permits, or they have moved. levels: of the key's rates, with this request counted."""

    ticket: str
    levels: tuple[Level, ...] = ()
    kind: Literal["admitted"] = "admitted"


@frozen
class Refused:
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
    """Until a Room message comes, all requests of this key would be refused, even for one choice."""
    levels: tuple[Level, ...] = ()
    """The levels of the key's rates."""
    kind: Literal["refused"] = "refused"


@frozen
class Room:
    """Permits or places in the queue have become free since a request was refused as `full`. Sent to all clients."""

    kind: Literal["room"] = "room"


@frozen
class Returned:
    """What a key was charged is corrected, because one of its requests waits no more or has ended. Sent to all clients.

    levels: of its rates, as they are now.
    """

    key: str
    levels: tuple[Level, ...]
    kind: Literal["returned"] = "returned"


Message = Ask | Move | Leave
Answer = Admitted | Refused | Room | Returned

_ADAPTER: TypeAdapter[Message | Answer] = TypeAdapter(
    Annotated[Ask | Move | Leave | Admitted | Refused | Room | Returned, Field(discriminator="kind")]
)


def to_data(message: Message | Answer) -> Any:
    """Return a message as values that JSON can represent."""
    return _ADAPTER.dump_python(message, mode="json")


def message_of(data: Any) -> Message:
    """Validate data sent by an admission client. Raises ValueError for anything else."""
    message = _ADAPTER.validate_python(data)
    if not isinstance(message, Ask | Move | Leave):
        raise ValueError(f"a client never sends {message.kind!r}")  # noqa: TRY004 - what is wrong is the value
    return message


def answer_of(data: Any) -> Answer:
    """Validate data sent by a ledger. Raises ValueError for anything else."""
    answer = _ADAPTER.validate_python(data)
    if isinstance(answer, Ask | Move | Leave):
        raise ValueError(f"a ledger never sends {answer.kind!r}")  # noqa: TRY004
    return answer
