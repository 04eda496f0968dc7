"""What parent and workers say to each other: plain frozen types, JSON on the way.

A message that an older or newer nproxy wrote may hold what is not known here; such a message cannot be read, and the
channel is given up. `Start.protocol` makes that plain before anything else does: a rolling restart may start workers of
a newer nproxy under an older parent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

PROTOCOL = 9
"""Raised whenever a message changes its name or meaning."""

Json = Any
"""Plain data: what JSON can hold."""

Question = Literal["metrics", "status", "ready"]
"""What either end may ask of the other: a worker answers for itself, the parent for all."""


@dataclass(frozen=True, slots=True)
class Taught:
    """A lesson about a model of an upstream. lesson: its type's name and its fields."""

    upstream: str
    model: str
    lesson: tuple[str, dict[str, Json]]
    kind: Literal["taught"] = "taught"


@dataclass(frozen=True, slots=True)
class Checked:
    """A look at a replica, as `nproxy.upstreams.health_checker.CheckResult` tells it."""

    upstream: str
    replica: str
    status: int | None
    seconds: float
    kind: Literal["checked"] = "checked"


@dataclass(frozen=True, slots=True)
class Crowding:
    """What one worker tells the others of an account; see `nproxy.upstreams.peer_workers.PeerNews`."""

    upstream: str
    model: str | None
    caller: str
    what: Literal["answers", "waits", "waits_no_more", "room"]
    process: str
    replica: str = ""
    requests: int = 1
    kind: Literal["crowding"] = "crowding"


@dataclass(frozen=True, slots=True)
class Start:
    """The first message to a worker: which one of how many it is, and what it is to serve.

    name: no other worker has or had it. pseudonym: that of the gateway, which all of its workers are. settings:
    `Reading.message()`, secrets and all. members: the servers that have announced themselves, None while none has.
    """

    protocol: int
    index: int
    workers: int
    name: str
    pseudonym: str
    settings: dict[str, Json] = field(repr=False)
    log_level: str
    engine_socket: str | None
    members: Json = None
    lessons: tuple[Taught, ...] = ()
    kind: Literal["start"] = "start"


@dataclass(frozen=True, slots=True)
class Reconfigure:
    """Serve with these settings from now on: `Reading.message()`."""

    settings: dict[str, Json] = field(repr=False)
    kind: Literal["reconfigure"] = "reconfigure"


@dataclass(frozen=True, slots=True)
class Members:
    """The replicas that registration and DNS have brought by now, all of them."""

    members: Json
    kind: Literal["members"] = "members"


@dataclass(frozen=True, slots=True)
class Drain:
    """Let requests in flight end, for at most so many seconds, and end.

    end: the port stays open and /ready says no. handover: another worker is in the slot; nothing more is accepted here,
    and kept connections are closed with their next answer.
    """

    how: Literal["end", "handover"]
    seconds: float
    kind: Literal["drain"] = "drain"


@dataclass(frozen=True, slots=True)
class Admission:
    """A message of admission's own, in either direction: see nproxy/gateway/admission."""

    message: Json
    kind: Literal["admission"] = "admission"


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker accepts connections."""

    version: str
    kind: Literal["ready"] = "ready"


@dataclass(frozen=True, slots=True)
class Leave:
    """The worker was told by a signal to end: another one is to take its slot first."""

    kind: Literal["leave"] = "leave"


@dataclass(frozen=True, slots=True)
class Beat:
    """The worker's event loop runs.

    metrics: its report, None for no new one; the last one is what a worker that dies has counted.
    """

    metrics: Json
    kind: Literal["beat"] = "beat"


@dataclass(frozen=True, slots=True)
class Query:
    """A question; the number comes back with its answer."""

    number: int
    what: Question
    kind: Literal["query"] = "query"


@dataclass(frozen=True, slots=True)
class Result:
    """What was asked for under this number."""

    number: int
    data: Json
    kind: Literal["result"] = "result"


Message = (
    Start
    | Reconfigure
    | Members
    | Drain
    | Taught
    | Checked
    | Crowding
    | Admission
    | Ready
    | Leave
    | Beat
    | Query
    | Result
)

_ADAPTER: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="kind")])


class NotAMessage(ValueError):
    """Bytes that are no message; says nothing of them, for they may hold secrets."""


def encode(message: Message) -> bytes:
    return _ADAPTER.dump_json(message)


def decode(data: bytes) -> Message:
    """Raises NotAMessage."""
    try:
        return _ADAPTER.validate_json(data)
    except ValueError:
        raise NotAMessage from None
