"""The inputs of the conduct: events of legs and timers, and the request's own end. A few plain types, no IO.

The driver translates what an upstream call does into these events and hands them over in the order in which they
happened. Every leg that was opened ends in exactly one LegEnded or LegFailed, except a leg that was cancelled, which
sends nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple

from nproxy.openai.errors import ApiError
from nproxy.openai.frozen import frozen


class FailureKind(StrEnum):
    """Why a leg failed. The value is the `outcome` label of `legs_total`."""

    CONNECT = "connect"  # refused, unresolvable, TLS: nothing was sent
    CONNECT_TIMEOUT = "connect_timeout"  # no connection was established in time: nothing was sent
    STALE = "stale"  # a kept-alive connection had been closed: nothing was answered, and one retry is free
    RESET = "reset"  # the connection broke before the response head
    DOWN = "down"  # the replica was found down while the leg waited for its first event; the call was given up
    UNAVAILABLE = "unavailable"  # no replica may be called now: nothing was sent
    TIMEOUT = "timeout"  # the first-event, idle, response or total time ran out
    STATUS = "status"  # the upstream answered with a status other than 2xx
    CUT = "cut"  # the body ended in an error, or cleanly but incomplete
    MALFORMED = "malformed"  # the answer violates the protocol
    IN_BAND = "in_band"  # an error object in a 200 answer or in a stream
    INTERRUPTED = "interrupted"  # `[DONE]` without a finish_reason, while the replica had other calls
    SHORT = "short"  # no choice came, or it is unclear which are missing; other missing choices are topped up
    DIFFERS = "differs"  # the repeated answer differs from the part that had been sent
    OVERSIZE = "oversize"  # an event or a body exceeds the limits
    UNSCORED = "unscored"  # `best_of` cannot choose: the upstream gives no log probabilities


Room = Literal["", "elsewhere", "siblings", "others"]
"""Where there may be capacity for a call that was refused for lack of it. "": nowhere; "elsewhere": at another replica;
"siblings": where calls of the same request are being answered; "others": where calls of other requests are."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong with one leg, in the upstream's own words if it had any."""

    kind: FailureKind
    message: str
    """One sentence for the client. Holds no URL, no credentials and no prompt."""
    status: int | None = None
    """The status of the upstream's answer (kind STATUS), or the one that its in-band error would have had."""
    content_type: str = ""
    """Of `body`."""
    body: bytes = b""
    """The upstream's answer (kind STATUS), or its in-band error."""
    unread: bool = False
    """It had a body, or may have had one, that could not be read to its end, so `body` is empty."""
    retry_after: float | None = None
    """Seconds, from the answer's `retry-after-ms` or `retry-after`, or from its text if it says that the server lacks
    capacity; for kind UNAVAILABLE, until a replica may be called."""
    another: bool = False
    """Another replica can take the leg meanwhile; for kind CONNECT, one to which the leg has not been."""
    room: Room = ""
    """If the upstream lacked capacity: where there may be some for the leg."""
    own_key: bool = False
    """The upstream was called with nproxy's own key, so its 401 is not the client's fault."""
    seconds: float = 0.0
    """Time lost before anything was sent (kind CONNECT_TIMEOUT)."""
    ours: bool = False
    """No server is to blame: this process had no file descriptor, port or memory for the call, or the client's upload
    broke off or took too long, or the client took the answer too slowly.
    """
    cause: str = ""
    """What the system says, in a few words, for the log alone (kind CONNECT)."""

    @property
    def unmade(self) -> bool:
        """Whether the call was not made because this process had no file descriptor, port or memory for it."""
        return self.ours and self.kind is FailureKind.CONNECT

    @property
    def logged(self) -> str:
        """The message with its cause."""
        return f"{self.message.removesuffix('.')}: {self.cause}." if self.cause else self.message


@frozen
class LegChunk:
    """One server-sent event: its joined data, and its `event` field if it had one.

    A relay passes it on as `data: `, the data, and a blank line. The `[DONE]` mark arrives as a chunk like any other.
    """

    leg: int
    data: bytes
    name: str = ""


@frozen
class LegChunks:
    """Several events without names that came together, without `[DONE]`: equivalent to one LegChunk for each.

    data: the data of all, joined by `BETWEEN` (of openai/sse.py); none is empty. count: the number of events, at least
    two.
    """

    leg: int
    data: bytes
    count: int


@frozen
class LegBody:
    """The whole body of an answer that is not a stream of events."""

    leg: int
    body: bytes


@frozen
class LegEnded:
    """The upstream closed its answer without an error at the transport level.

    beside: the replica had other calls meanwhile, and has not been seen to answer several streams at once.
    """

    leg: int
    beside: bool = False


@frozen
class LegFailed:
    """The leg failed at the transport or status level, and is over."""

    leg: int
    failure: Failure


class TimerKind(StrEnum):
    """What a timer of the conduct is for."""

    RETRY = "retry"
    """A leg has paused long enough to be called again."""
    DRAIN = "drain"
    """A leg has sent everything, and its upstream has had time to close the answer."""
    WARM = "warm"
    """The legs held back until the first one has computed the prompt wait no longer."""
    GATHER = "gather"
    """The failures of the same moment are known."""
    HEADERS = "headers"
    """The client's stream begins, whether or not an upstream has answered."""
    PING = "ping"
    """Half of the longest allowed silence has passed; a stream that was silent in it gets a comment."""


class Timer(NamedTuple):
    """leg: the leg's number for RETRY and DRAIN; -1 for timers of the whole request."""

    kind: TimerKind
    leg: int = -1

    def __str__(self) -> str:
        return self.kind if self.leg < 0 else f"{self.kind}:{self.leg}"


@frozen
class TimerFired:
    """A timer that was set by a SetTimer command has run out."""

    timer: Timer


@frozen
class Stopped:
    """The request ends before its answer is whole: the client is told this error, or has left (None)."""

    error: ApiError | None = None


Event = LegChunk | LegChunks | LegBody | LegEnded | LegFailed | TimerFired | Stopped
