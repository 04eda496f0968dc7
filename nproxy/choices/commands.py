"""The outputs of the conduct: commands for the driver, which carries them out and decides nothing."""

from __future__ import annotations

from typing import Literal

from nproxy.choices.events import Failure, FailureKind, Timer
from nproxy.choices.leg import Leg
from nproxy.choices.lessons import Lesson
from nproxy.choices.plan import Way
from nproxy.choices.resume import Resume
from nproxy.openai.frozen import frozen

AnomalyKind = Literal[
    "crowded",
    "cut_after_finish",
    "n_refused",
    "prompt_lists_refused",
    "prompt_tokens_differ",
    "request_id_refused",
    "seed_omitted",
    "seed_refused",
    "seed_too_large",
    "short_answer",
    "stream_options_refused",
    "stream_refused",
    "surplus_choice",
    "text_after_finish",
]
ResumeOutcome = Literal["ok", "differs", "failed", "spent", "impossible"]
Outcome = FailureKind | Literal["ok", "partial", "fallback", "ended", ""]
WITHOUT_ERROR = ("ok", "partial", "")
"""The outcomes of requests that nproxy did not end with an error. "": the client has left."""


@frozen
class OpenLeg:
    """Start an upstream call. attempt: counts the calls of the leg from 0.

    alone: on a replica that has no other call, and gets none before this one is over. waits: the leg was refused for
    lack of capacity, and waits at the gate until other calls have freed some.
    """

    leg: Leg
    attempt: int = 0
    alone: bool = False
    waits: bool = False


@frozen
class CancelLeg:
    """End the call of this leg at once. The leg sends no more events."""

    leg: int


@frozen
class SetTimer:
    """Send TimerFired(timer) once after so many seconds, unless the request ends first.

    A timer is not set again before it has fired, and is never cancelled.
    """

    timer: Timer
    seconds: float


@frozen
class Begin:
    """Send the head of a streaming answer (status 200). At most once, before the first Emit."""

    way: Way


@frozen
class Emit:
    """Write these bytes to the client. All Emits of one receive() leave in one write."""

    data: bytes


@frozen
class Respond:
    """Send a whole JSON answer: the merged choices, or an error if no stream has begun.

    At most once, and never together with Begin. `headers` contain no content-type and no content-length.
    """

    status: int
    body: bytes
    way: Way
    headers: tuple[tuple[str, str], ...] = ()


@frozen
class Learn:
    """An answer taught something about the upstream. The driver stores it for later plans."""

    lesson: Lesson


@frozen
class Anomaly:
    """The upstream did something odd that nproxy made good. Counted in `anomalies_total{kind}`."""

    kind: AnomalyKind


@frozen
class Resumed:
    """The outcome of resuming a cut leg that the client had read from. Counted in `resumes_total{how,outcome}`.

    how: replay or continue. outcome: of a call that resumed it: ok, differs (from what had been sent), or failed
    (another call may follow); if there was no such call: spent (the attempts, or the budget) or impossible.
    """

    leg: int
    how: Resume
    outcome: ResumeOutcome


@frozen
class Retried:
    """A leg is being tried again. Counted in `retries_total{reason}`."""

    leg: int
    reason: FailureKind


@frozen
class CallEnded:
    """The outcome of a leg's call, by which replicas are chosen. failure: None if it brought what it should.

    Not sent for a call that nproxy ended because nobody needs it.
    """

    leg: int
    failure: Failure | None = None


@frozen
class ChoiceFinished:
    """One choice has its finish reason. Counted in `choices_total{finish_reason}`."""

    index: int
    finish_reason: str


@frozen
class Spent:
    """Tokens, for the metrics: what the client is told, and what the upstream really computed.

    A count is None if it is unknown: the upstream reported no usage, and sent no stream whose events could be counted.
    """

    client_prompt: int | None = None
    client_completion: int | None = None
    upstream_prompt: int | None = None
    upstream_completion: int | None = None
    prompt_saved: int = 0
    """Prompt tokens that would also have been computed if each choice had been a call of its own."""


@frozen
class Finish:
    """The request is over. The last command.

    outcome: ok, partial, fallback, the failure kind that decided it, ended (it was stopped), or "" (the client has
    left). status: the status of the error that ended a stream which had begun, else 200.
    """

    outcome: Outcome = "ok"
    status: int = 200


@frozen
class FallBack:
    """Have the request planned anew at another upstream. The client has been sent no more than a head and pings.

    Only if the settings allow it. instead: the commands that end the request if no other upstream has the model.
    """

    instead: tuple[Respond | Emit, Finish]


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
