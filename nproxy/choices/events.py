"""What goes into the conduct: the events of legs and timers. A few plain types, no IO.

The driver translates what an upstream call does into these and hands them over in the order in
which they happened. Every leg that was opened ends in exactly one of LegEnded and LegFailed, except
a leg that was cancelled, which sends nothing more.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple

from nproxy.openai.frozen import frozen


class FailureKind(StrEnum):
    """Why a leg failed; the value is the `outcome` label of `legs_total`."""

    CONNECT = "connect"  # refused, unresolvable, TLS: nothing was sent
    CONNECT_TIMEOUT = "connect_timeout"  # no connection came about in time: nothing was sent
    STALE = "stale"  # a kept-alive socket was already closed: nothing was answered, retried freely
    RESET = "reset"  # the connection broke before the response head
    DOWN = "down"  # the replica was found down while the leg waited for its first event, and the leg was called off
    UNAVAILABLE = "unavailable"  # no replica may be asked now; nothing was sent
    TIMEOUT = "timeout"  # first event, idle, response or total time ran out
    STATUS = "status"  # the upstream answered with a status other than 2xx
    CUT = "cut"  # the body ended in an error, or cleanly but without what was promised
    MALFORMED = "malformed"  # what came is not what the protocol says
    IN_BAND = "in_band"  # an error object in a 200 answer or in the stream
    INTERRUPTED = "interrupted"  # `[DONE]` without a finish_reason, while other calls were beside it
    SHORT = "short"  # none of the choices that were asked for; fewer of them are topped up
    DIFFERS = "differs"  # called again after a cut, it said something else than what had been sent
    OVERSIZE = "oversize"  # an event or a body above the limits
    UNSCORED = "unscored"  # `best_of` has nothing to choose by: the upstream gives no log probabilities


NOT_REACHED = frozenset({FailureKind.CONNECT, FailureKind.CONNECT_TIMEOUT})
"""No connection came about."""


Room = Literal["", "elsewhere", "siblings", "others"]
"""Where there may be room for a call that was turned away: at another replica, or where siblings are being answered, or
calls of others are."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong with one leg, in the upstream's own words where it had any.

    status, content_type, body: the upstream's answer (kind STATUS), or its in-band error and the status that it would
    have had.
    retry_after: seconds, read from the answer's `retry-after-ms` or `retry-after`; of kind UNAVAILABLE, until a replica
    may be asked. another: there is another replica that can take it meanwhile. room: there was none for it, but there
    may be later.
    own_key: the upstream was called with nproxy's own key, so its 401 is not the client's fault.
    seconds: that went by in vain before anything was sent (kind CONNECT_TIMEOUT).
    ours: this process had no file descriptor, port or memory for the call, so no server is to blame.
    message: one sentence for the client; holds no URL, no credentials and no prompt.
    """

    kind: FailureKind
    message: str
    status: int | None = None
    content_type: str = ""
    body: bytes = b""
    retry_after: float | None = None
    another: bool = False
    room: Room = ""
    own_key: bool = False
    seconds: float = 0.0
    ours: bool = False


@frozen
class LegBegan:
    """The head of a 2xx answer has come. `sse` says whether events follow or one JSON body."""

    leg: int
    sse: bool


@frozen
class LegChunk:
    """One server-sent event: its joined data, and its `event` field if it had one.

    A relay passes it on as `data: `, the data, and a blank line. The `[DONE]` mark arrives as a chunk
    like any other.
    """

    leg: int
    data: bytes
    name: str = ""


@frozen
class LegChunks:
    """Several events without names that came together, and no `[DONE]`: the same as a LegChunk for each.

    data: that of all, with `BETWEEN` (of openai/sse.py) between; none is empty. count: of the events, two at least.
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

    beside: other calls were at the same replica meanwhile, which has not been seen to stream several at once.
    """

    leg: int
    beside: bool = False


@frozen
class LegFailed:
    """The leg is over and did not succeed at the transport or status level."""

    leg: int
    failure: Failure


class TimerKind(StrEnum):
    """What the conduct wants to be told the time for."""

    RETRY = "retry"
    """A leg has paused long enough to be called again."""
    DRAIN = "drain"
    """A leg has said all, and its upstream has had time to close the answer."""
    WARM = "warm"
    """The legs that are held back for the first one's prefix wait no longer."""
    GATHER = "gather"
    """Failures that came in the same moment are known."""
    HEADERS = "headers"
    """The client's stream begins, whether or not an upstream has answered."""
    PING = "ping"
    """Half the time has passed after which a silent stream gets a comment."""


class Timer(NamedTuple):
    """leg: whose, for RETRY and DRAIN; -1 for the request's own."""

    kind: TimerKind
    leg: int = -1

    def __str__(self) -> str:
        return self.kind if self.leg < 0 else f"{self.kind}:{self.leg}"


@frozen
class TimerFired:
    """A timer that a SetTimer command asked for has run out."""

    timer: Timer


Event = LegBegan | LegChunk | LegChunks | LegBody | LegEnded | LegFailed | TimerFired
