"""What comes out of the conduct: commands for the driver, which carries them out and decides nothing."""

from __future__ import annotations

from nproxy.choices.events import Failure, FailureKind, Timer
from nproxy.choices.leg import Leg
from nproxy.choices.lessons import Lesson
from nproxy.openai.frozen import frozen


@frozen
class OpenLeg:
    """Start an upstream call. `attempt` counts from 0 and is 1 for the first retry (same seed).

    alone: on a replica that has no other call, and gets none before this one is over. waits: it was turned away for
    want of room, and is called once others have left some.
    """

    leg: Leg
    attempt: int = 0
    alone: bool = False
    waits: bool = False


@frozen
class CancelLeg:
    """End the call of this leg at once; nothing more is heard of it."""

    leg: int


@frozen
class SetTimer:
    """Send TimerFired(timer) once after so many seconds, unless the request ends first.

    A timer is not set again before it has fired; there is nothing to cancel.
    """

    timer: Timer
    seconds: float


@frozen
class Begin:
    """Send the head of a streaming answer (status 200). Comes at most once, before the first Emit."""

    headers: tuple[tuple[str, str], ...] = ()


@frozen
class Emit:
    """Write these bytes to the client. All Emits of one receive() leave in one write."""

    data: bytes


@frozen
class Respond:
    """Send a whole JSON answer: the merged choices, or an error where no stream has begun.

    Comes at most once, and never beside Begin. `headers` hold no content-type and no content-length.
    """

    status: int
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


@frozen
class FallBack:
    """Have the request planned anew at another upstream; the client has been sent nothing of this one.

    Only where the settings allow it. kind: of the failure that decided it. instead: what the client is told where no
    other upstream has the model.
    """

    kind: FailureKind
    instead: Respond


@frozen
class Learn:
    """An answer taught something about the upstream; the driver stores it for later plans."""

    lesson: Lesson


@frozen
class Anomaly:
    """The upstream did something odd that was mended; counted in `anomalies_total{kind}`."""

    kind: str


@frozen
class Resumed:
    """What became of a leg that was cut when the client had read of it; counted in `resumes_total{how,outcome}`.

    how: replay or continue. outcome, of a call that went on with it: ok, differs (from what had been sent), or failed
    (another one may follow); where there was no such call: spent (the attempts, or the budget), impossible.
    """

    leg: int
    how: str
    outcome: str


@frozen
class Retried:
    """A leg is being tried again; counted in `retries_total{reason}`."""

    leg: int
    reason: str


@frozen
class CallEnded:
    """What became of a leg's call, which the choice of replicas goes by. failure: None where it brought what it should.

    Of a call that nproxy ended because nobody needs it, nothing is said.
    """

    leg: int
    failure: Failure | None = None


@frozen
class ChoiceFinished:
    """One choice has its finish reason; counted in `choices_total{finish_reason}`."""

    index: int
    finish_reason: str


@frozen
class Spent:
    """Tokens, for the metrics: what the client is told, and what the upstream really computed.

    None where an upstream reported no usage. prompt_saved: prompt tokens that a call for each choice would have cost
    besides.
    """

    client_prompt: int | None = None
    client_completion: int | None = None
    upstream_prompt: int | None = None
    upstream_completion: int | None = None
    prompt_saved: int = 0


@frozen
class Finish:
    """The request is over; the last command.

    outcome: ok, partial, fallback, or the failure kind that decided it. status: of the error that a stream ended with
    that had begun, else 200.
    """

    outcome: str = "ok"
    status: int = 200


Command = (
    OpenLeg
    | CancelLeg
    | SetTimer
    | Begin
    | Emit
    | Respond
    | FallBack
    | Learn
    | Anomaly
    | Resumed
    | Retried
    | CallEnded
    | ChoiceFinished
    | Spent
    | Finish
)
