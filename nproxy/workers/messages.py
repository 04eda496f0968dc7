"""The messages between parent and workers: plain frozen types, sent as JSON: objects, and arrays for admission control.

A message of an older or newer nproxy may contain what this version does not know. Such a message cannot be read, and
the channel is closed. `Start.protocol` detects this before anything else happens: a rolling restart may start workers
of a newer nproxy under an older parent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, TypeAdapter

from nproxy.upstreams.health_checks import CheckResult
from nproxy.upstreams.overload.peer_workers import PeerNews

PROTOCOL = 13
"""To be raised whenever a message changes its name or meaning."""

Json = Any
"""Plain data: what JSON can hold."""

Question = Literal["metrics", "status", "ready"]
"""What either end may ask the other: a worker answers for itself, the parent for all workers."""


@dataclass(frozen=True, slots=True)
class Taught:
    """A lesson about a model of an upstream. lesson: the name of its type, and its fields."""

    upstream: str
    model: str
    lesson: tuple[str, dict[str, Json]]
    kind: Literal["taught"] = "taught"


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a health check."""

    check: CheckResult
    kind: Literal["checked"] = "checked"


@dataclass(frozen=True, slots=True)
class Crowding:
    """What one worker tells the others about an account."""

    news: PeerNews
    kind: Literal["crowding"] = "crowding"


@dataclass(frozen=True, slots=True)
class LegsOfLeaving:
    """The calls that a worker which hands over still has, for the others of its slot: by upstream and replica.

    worker: its name. legs: only where `parallel` limits them; empty once it has none, or is gone.
    """

    worker: str
    legs: dict[str, dict[str, int]]
    kind: Literal["legs_of_leaving"] = "legs_of_leaving"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The first message to a worker: which one it is, and what it is to serve."""

    protocol: int
    """PROTOCOL of the parent."""
    index: int
    """The worker's slot, from 0."""
    workers: int
    """The number of workers."""
    name: str
    """The worker's name. No other worker has or had it."""
    pseudonym: str
    """The gateway's name in `Via`, the same for all of its workers."""
    settings: dict[str, Json] = field(repr=False)
    """`Reading.message()`, including the secrets."""
    log_level: str
    engine_socket: str | None
    """The Unix socket of the built-in engine; None if there is none."""
    members: Json = None
    """As in Members; None if nothing has been registered or drained yet."""
    lessons: tuple[Taught, ...] = ()
    """The lessons of other workers that are still believed."""
    predecessors: tuple[LegsOfLeaving, ...] = ()
    """Those in its slot that are leaving and still have calls."""
    kind: Literal["start"] = "start"


@dataclass(frozen=True, slots=True)
class Reconfigure:
    """Use these settings from now on. settings: `Reading.message()`."""

    settings: dict[str, Json] = field(repr=False)
    kind: Literal["reconfigure"] = "reconfigure"


@dataclass(frozen=True, slots=True)
class Members:
    """All registered servers and draining addresses: a snapshot of the registry."""

    members: Json
    kind: Literal["members"] = "members"


@dataclass(frozen=True, slots=True)
class Drain:
    """Let requests in flight end, for at most so many seconds, then exit.

    how: `end`: the port stays open, and /ready says no. `handover`: another worker has taken the slot; this one accepts
    nothing more, and closes kept-alive connections with their next answer.
    """

    how: Literal["end", "handover"]
    seconds: float
    kind: Literal["drain"] = "drain"


@dataclass(frozen=True, slots=True)
class Admission:
    """A message of admission control, in either direction: the bytes of nproxy/gateway/admission/messages.py."""

    message: bytes
    kind: Literal["admission"] = "admission"


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker accepts connections."""

    version: str
    kind: Literal["ready"] = "ready"


@dataclass(frozen=True, slots=True)
class Leave:
    """A signal told the worker to end; another one is to take its slot first."""

    kind: Literal["leave"] = "leave"


@dataclass(frozen=True, slots=True)
class Beat:
    """The worker's event loop is running.

    metrics: its report as `telemetry.sums.packed` writes it, None if there is no new one. If a worker dies, its last
    report is what it has counted.
    """

    metrics: str | None
    kind: Literal["beat"] = "beat"


@dataclass(frozen=True, slots=True)
class Query:
    """A question. number: comes back with the answer."""

    number: int
    what: Question
    kind: Literal["query"] = "query"


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to the Query with this number."""

    number: int
    data: Json
    kind: Literal["result"] = "result"


_Object = (
    Start
    | Reconfigure
    | Members
    | Drain
    | Taught
    | Checked
    | Crowding
    | LegsOfLeaving
    | Ready
    | Leave
    | Beat
    | Query
    | Result
)

Message = Admission | _Object

_ADAPTER: TypeAdapter[_Object] = TypeAdapter(Annotated[_Object, Field(discriminator="kind")])


class NotAMessage(ValueError):
    """Bytes that are not a message. The error does not quote them, because they may hold secrets."""


_T = TypeVar("_T")


def said(message: Admission, read: Callable[[bytes], _T]) -> _T:
    """Return what a message of admission control says. read: raises ValueError. Raises NotAMessage."""
    try:
        return read(message.message)
    except ValueError:
        raise NotAMessage from None


def encode(message: Message) -> bytes:
    """Return a message as bytes; see `decode`."""
    return message.message if isinstance(message, Admission) else _ADAPTER.dump_json(message)


def decode(data: bytes) -> Message:
    """Parse a message, except what one of admission control says. Raises NotAMessage."""
    if data.startswith(b"["):
        return Admission(data)
    try:
        return _ADAPTER.validate_json(data)
    except ValueError:
        raise NotAMessage from None
