"""What desk and ledger say to each other: plain frozen types, JSON on the way between processes."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from nproxy.gateway.callers import Rates
from nproxy.openai.frozen import frozen

Kind = Literal["requests", "choices", "tokens"]
"""What is counted per minute."""

Reason = Literal["too_wide", "requests", "choices", "tokens", "queue_full", "timeout", "draining"]
"""Why a request is refused. too_wide: it would never fit. requests, choices, tokens: its key's rate."""


@frozen
class Ask:
    """May this request go ahead?

    key: whose limits it counts against. choices: the permits it needs, all of them together. tokens: a guess of what it
    will spend. weight: the key's share of what is free. most: the key's choices in flight. rates: per minute. waits:
    where there is no room now, whether it waits for some.
    """

    ticket: str
    key: str
    upstream: str
    choices: int
    tokens: int = 0
    weight: float = 1.0
    most: int | None = None
    rates: Rates = field(default_factory=Rates)
    waits: bool = True
    kind: Literal["ask"] = "ask"


@frozen
class Move:
    """The request goes on at another upstream; its permits go with it."""

    ticket: str
    upstream: str
    kind: Literal["move"] = "move"


@frozen
class Leave:
    """The request is over, wherever it stood. tokens: what it spent, None where nobody told: then the guess stands."""

    ticket: str
    tokens: int | None = None
    kind: Literal["leave"] = "leave"


@frozen
class Level:
    """How far a key is with one of its rates: `behind` seconds from now nothing that it has spent counts any more."""

    what: Kind
    limit: int
    behind: float


@frozen
class Admitted:
    """The permits are taken, or have moved. levels: of the key's rates, this request counted."""

    ticket: str
    levels: tuple[Level, ...] = ()
    kind: Literal["admitted"] = "admitted"


@frozen
class Refused:
    """No permits. A request that wanted to move keeps what it has of them and has none at any upstream.

    retry_after: seconds until it may be worth another try. limit: what it is too wide for. full: until there is Room,
    nothing of this key would be taken, however narrow.
    """

    ticket: str
    reason: Reason
    retry_after: float = 0.0
    limit: int = 0
    full: bool = False
    levels: tuple[Level, ...] = ()
    kind: Literal["refused"] = "refused"


@frozen
class Room:
    """Something has become free since somebody was told `full`; for all desks."""

    kind: Literal["room"] = "room"


@frozen
class Returned:
    """What a key was told that it had spent has come back in part, for a request of it waits no more; for all desks.

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
    """A message as what JSON can hold."""
    return _ADAPTER.dump_python(message, mode="json")


def message_of(data: Any) -> Message:
    """What a desk has sent. Raises ValueError for anything else."""
    message = _ADAPTER.validate_python(data)
    if not isinstance(message, Ask | Move | Leave):
        raise ValueError(f"a desk never sends {message.kind!r}")  # noqa: TRY004 - what is wrong is the value
    return message


def answer_of(data: Any) -> Answer:
    """What a ledger has sent. Raises ValueError for anything else."""
    answer = _ADAPTER.validate_python(data)
    if isinstance(answer, Ask | Move | Leave):
        raise ValueError(f"a ledger never sends {answer.kind!r}")  # noqa: TRY004
    return answer
