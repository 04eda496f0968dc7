"""Recovery of a failed leg: repeat it, ask for less, call it alone, have it wait, or resume it where it broke off."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from nproxy.choices.capability import Capability
from nproxy.choices.commands import Anomaly, AnomalyKind, Command, Learn, Resumed, ResumeOutcome, Retried, SetTimer
from nproxy.choices.continuation import continuing
from nproxy.choices.events import Failure, FailureKind, Timer, TimerKind
from nproxy.choices.failure_table import SERVICE_UNAVAILABLE, Follows, follows, no_room
from nproxy.choices.learning import Learning, of_unfinished
from nproxy.choices.leg import Leg
from nproxy.choices.leg_outputs import LegOutputs
from nproxy.choices.lessons import Lesson, OneAtATime, Verdict
from nproxy.choices.plan import narrower, split_by_prompt
from nproxy.choices.remedies import OmittableField, Remedy, Reseeded, SplitPrompts, TooWide, Without, one_by_one, remedy
from nproxy.choices.retry import (
    FIRST_PAUSE_SECONDS,
    LONGEST_WITH_ANOTHER_SECONDS,
    pause_seconds,
    resumable,
    retryable,
    untried,
)
from nproxy.choices.roster import LegRun, Roster
from nproxy.choices.settings import ConductSettings
from nproxy.choices.states import LegState, Signal
from nproxy.openai.dialect import Dialect
from nproxy.openai.requests import Request

LONGEST_WAIT_SECONDS = 10.0
"""How long in all a leg of a stream that has begun waits for a replica that may be called."""


INTERRUPTED = Failure(
    FailureKind.INTERRUPTED,
    "The upstream ended the answer before it was complete, while it had other calls. If it supports only one call at a "
    "time, set `parallel: 1` in its configuration; `nproxy probe` finds out.",
)

_REFUSED: Mapping[OmittableField, AnomalyKind] = {
    "seed": "seed_refused",
    "stream_options": "stream_options_refused",
    "stream": "stream_refused",
    "request_id": "request_id_refused",
}


class Recovery:
    """Recovers the legs of one request: moves them in the roster, and returns the commands that are needed besides.

    notes: takes what is to be counted of resumes, as Merge.notes. settings, budget, jitter: as in Conduct. omit: what
    the upstream refused; no further leg is sent with it. alone: further legs are called on a replica that has no other
    call. parallel: how many calls may be open at once; None for any number. retries_spent: a failure that another
    attempt might have made good was left to stand, because no attempts, or no budget, were left.
    """

    def __init__(
        self,
        request: Request,
        capability: Capability,
        roster: Roster,
        legs: LegOutputs,
        notes: list[Command],
        settings: ConductSettings,
        budget: Callable[[], bool],
        jitter: Callable[[], float],
    ) -> None:
        self.omit: frozenset[str] = frozenset()
        self.alone = capability.alone
        self.parallel = capability.parallel
        self.retries_spent = False
        self._request = request
        self._capability = capability
        self._roster = roster
        self._legs = legs
        self._notes = notes
        self._learning: Learning | None = None  # None until the upstream has refused something
        self._on_trial = capability.alone_on_trial
        self._crowded = False
        self._settings = settings
        self._budget = budget
        self._jitter = jitter

    def succeeded(self, run: LegRun, streamed: bool) -> list[Command]:
        """A leg has ended well: return what that teaches about earlier refusals and interruptions.

        streamed: its answer came as events.
        """
        if run.resumed:
            self._resumed(run, "ok")
        lessons: list[Command] = []
        if self._learning is not None:
            lessons += map(Learn, self._learning.succeeded(run.leg))
        if streamed:
            lessons += self._verdict(run, "confirmed")
        return lessons

    def broken_off(self, run: LegRun, failure: Failure, *, beside: bool) -> tuple[Failure, list[Command]]:
        """A leg has ended and is not whole: return its failure, and what that teaches. beside: as in LegEnded."""
        output = self._legs.outputs[run.leg.number]
        if not output.broke_off:
            return failure, [*map(Learn, of_unfinished(self._request, self._capability, output))]
        if not beside:
            return failure, self._verdict(run, "refuted")
        self._on_trial = self.alone = True
        self.parallel = 1
        return INTERRUPTED, [Learn(OneAtATime("suspected"))]

    def _verdict(self, run: LegRun, verdict: Verdict) -> list[Command]:
        """Return what a stream teaches that had a replica to itself: whether calls must be made one at a time."""
        if not (self._on_trial and run.alone):
            return []
        self._on_trial = False
        return [Learn(OneAtATime(verdict))]

    def prompt_by_prompt(self, run: LegRun) -> list[Command]:
        """Replace a leg whose answer is of no use, because it is unclear which of its prompts the choices belong to."""
        self._legs.disown(run.leg.number)
        self._roster.move(run, Signal.END)
        self._roster.add(split_by_prompt(run.leg, self._request.prompts))
        return [Anomaly("short_answer")]

    def recover(self, run: LegRun, failure: Failure) -> list[Command] | None:
        """Find another way for a failed leg. Returns None if there is none and the failure stands."""
        if self._came_to_nobody(failure) and (run.resumed or self._legs.client_has_read_any):
            waits = self._wait(run, failure)
            if waits is None and run.resumed:
                self._resumed(run, "failed")
            return waits
        if run.resumed and not failure.room:
            self._resumed(run, "differs" if failure.kind is FailureKind.DIFFERS else "failed")
        if run.state is LegState.SPEAKING:
            read = self._legs.client_has_read(run.leg.number)
            return self._resume(run, failure) if read else self._begin_anew(run, failure)
        for way in WAYS:
            if (commands := way(self, run, failure)) is not None:
                return commands
        return None

    # ---- the ways for a leg that had not begun to answer: each returns None if it is of no use

    def _without_what_was_refused(self, run: LegRun, failure: Failure) -> list[Command] | None:
        return self._ask_for_less(run, remedy(self._request, self._capability, run.leg, failure))

    def _one_by_one(self, run: LegRun, failure: Failure) -> list[Command] | None:
        return self._ask_for_less(run, one_by_one(self._request, self._capability, run.leg, failure))

    def _ask_for_less(self, run: LegRun, remedy: Remedy | None) -> list[Command] | None:
        """Do without what the upstream refused, if that is possible."""
        match remedy:
            case None:
                return None
            case Without(field, lesson=lesson):
                self._roster.again(run)
                if field in self.omit:
                    return []
                self.omit |= {field}
                if lesson is not None:
                    self._learning = self._learning or Learning()
                    self._learning.left_out(lesson)
                return [Anomaly(_REFUSED[field])]
            case Reseeded(seed):
                run.leg = run.leg.seeded(seed)
                self._roster.again(run)
                return [Anomaly("seed_too_large")]
            case TooWide(width, lesson=narrow, refused=refused):
                self._replace(run, narrower(run.leg, width), narrow)
                return [Anomaly(refused)]
            case SplitPrompts(lesson=one_each):
                self._replace(run, split_by_prompt(run.leg, self._request.prompts), one_each)
                return [Anomaly("prompt_lists_refused")]

    def _replace(self, run: LegRun, legs: Sequence[Leg], lesson: Lesson | None) -> None:
        """Replace a leg that was refused by others. lesson: what their success teaches."""
        self._roster.move(run, Signal.END)
        self._legs.drop(run.leg.number)
        stand_ins = self._roster.add(legs)
        if lesson is not None:
            self._learning = self._learning or Learning()
            self._learning.replaced(lesson, stand_ins)

    def _try_again(self, run: LegRun, failure: Failure) -> list[Command] | None:
        """Try the same again after a pause, if that may help and is allowed."""
        if not retryable(failure) and not (run.resumed and resumable(failure)):
            return None
        if self._goes_to_another_upstream(failure):
            return None
        if run.crowded and no_room(failure):
            self.retries_spent = True
            return None
        retried = Retried(run.leg.number, failure.kind)
        if failure.kind is FailureKind.STALE and not run.stale:
            run.stale = True  # its connection had been closed before: this attempt is free
            self._roster.again(run)
            return [retried]
        if untried(failure) and self._settings.retries_per_leg:
            self._roster.again(run)
            return [retried]
        if not self._granted(run):
            return None
        self._roster.pause(run)
        return [retried, self._timer(run, failure)]

    def _goes_to_another_upstream(self, failure: Failure) -> bool:
        """Whether another upstream is asked instead of waiting for this one as long as it wishes."""
        waits = not failure.another and (failure.retry_after or 0.0) > LONGEST_WITH_ANOTHER_SECONDS
        return waits and self._settings.fallback_available and not self._legs.client_has_read_any

    def _wait_for_room_here(self, run: LegRun, failure: Failure) -> list[Command] | None:
        return None if failure.room == "elsewhere" else self._wait_for_room(run, failure)

    def _wait_for_room_elsewhere(self, run: LegRun, failure: Failure) -> list[Command] | None:
        return self._wait_for_room(run, failure) if failure.room == "elsewhere" else None

    def _wait_for_room(self, run: LegRun, failure: Failure) -> list[Command] | None:
        """Have a refused leg wait until other calls have freed capacity, at the gate, which sees all requests.

        That costs no attempt, because calls are being answered. If none of them belongs to this request, another
        upstream is tried first.
        """
        if self._settings.retries_per_leg == 0 or not failure.room:
            return None
        if failure.room != "siblings" and self._settings.fallback_available and not self._legs.client_has_read_any:
            return None
        noted: list[Command] = [Retried(run.leg.number, failure.kind)]
        if not self._crowded:
            self._crowded = True
            noted.append(Anomaly("crowded"))
        run.waits = run.crowded = True
        self._roster.again(run)
        return noted

    def _wait_until_it_has_started(self, run: LegRun, failure: Failure) -> list[Command] | None:
        """Wait if the server may be there but not ready, or a proxy answers that does not reach it."""
        unready = failure.kind is FailureKind.STATUS and failure.status in (502, SERVICE_UNAVAILABLE)
        if not unready or self._settings.retries_per_leg == 0:
            return None
        return self._wait(run, failure) if run.resumed or self._legs.client_has_read_any else None

    # ---- waiting for a replica, and the ways for a leg that had begun to answer

    def _came_to_nobody(self, failure: Failure) -> bool:
        """Whether no replica could be called, or the one called was not reached, and the leg may wait for one."""
        if follows(failure, Follows.NOT_REACHED):
            return self._settings.retries_per_leg > 0
        return failure.kind is FailureKind.UNAVAILABLE

    def _wait(self, run: LegRun, failure: Failure) -> list[Command] | None:
        """Ask for a replica once more: the client has read something, so its request can no longer be refused.

        That costs no attempt, because no server has taken the leg; the total wait is bounded. If it is not known how
        long to wait, the wait is random, and up to as long as all waits before. Time spent on a failed attempt to
        connect counts as a wait.
        """
        run.waited += failure.seconds
        asked, left = failure.retry_after, LONGEST_WAIT_SECONDS - run.waited
        if left <= 0 or (asked or 0.0) > left:
            return None
        span = max(FIRST_PAUSE_SECONDS, run.waited) if asked is None else FIRST_PAUSE_SECONDS
        seconds = min(max((asked or 0.0) + span * self._jitter() - failure.seconds, 0.0), left)
        run.waited += seconds
        self._roster.pause(run)
        return [Retried(run.leg.number, failure.kind), SetTimer(Timer(TimerKind.RETRY, run.leg.number), seconds)]

    def _begin_anew(self, run: LegRun, failure: Failure) -> list[Command] | None:
        """Try the same again, although it had begun to answer; by itself, if it ended because of another call."""
        if not resumable(failure) or not self._granted(run):
            return None
        retried = Retried(run.leg.number, failure.kind)
        if failure.kind is FailureKind.INTERRUPTED:
            self._roster.again(run, Signal.RESTART)
            return [retried]
        self._roster.pause(run, Signal.RESTART)
        return [retried, self._timer(run, failure)]

    def _resume(self, run: LegRun, failure: Failure) -> list[Command] | None:
        """Continue in another call from where the client's answer broke off."""
        if self._settings.resume == "off" or not resumable(failure):
            return None
        legs = [run.leg] if self._settings.resume == "replay" else self._continuing(run)
        if legs is None:
            self._resumed(run, "impossible")
            return None
        if not self._granted(run):
            self._resumed(run, "spent")
            return None
        if run.leg.choices(self._request.prompts) == 1 or self._settings.resume == "replay":
            run.leg = replace(legs[0], number=run.leg.number, seed=run.leg.seed)
            run.resumed = True
            self._roster.pause(run, Signal.RESTART)
            return [self._timer(run, failure)]
        parts = self._roster.split(run, legs)
        self._legs.hand_over(run.leg.number)
        return [self._timer(part, failure) for part in parts]

    def _continuing(self, run: LegRun) -> list[Leg] | None:
        if self._request.choice_params is not None and self._capability.exact:
            return None  # the engine assigns them by a choice's place in its one call
        if self._request.dialect is Dialect.CHAT and self._settings.chat_continues == "no":
            return None
        cut = self._legs.outputs[run.leg.number]
        return continuing(self._request, cut, self._legs.n, self._settings.chat_continues)

    def _resumed(self, run: LegRun, outcome: ResumeOutcome) -> None:
        self._notes.append(Resumed(run.leg.number, self._settings.resume, outcome))

    def _timer(self, run: LegRun, failure: Failure) -> SetTimer:
        return SetTimer(Timer(TimerKind.RETRY, run.leg.number), pause_seconds(failure, run.retries - 1, self._jitter()))

    def _granted(self, run: LegRun) -> bool:
        """Take one more attempt for a leg, if it has one left and the budget grants it."""
        per_leg = self._settings.retries_per_leg
        if run.retries >= per_leg or not self._budget():
            self.retries_spent |= per_leg > 0
            return False
        run.retries += 1
        return True


WAYS = (
    Recovery._without_what_was_refused,  # first: a refusal for good, which no pause changes
    Recovery._wait_for_room_here,  # costs no attempt
    Recovery._try_again,  # also at a replica that has room, if this one has none
    Recovery._one_by_one,
    Recovery._wait_for_room_elsewhere,  # the other replica had none either, or no attempt was left
    Recovery._wait_until_it_has_started,  # last: the client has read something, and nothing else is left
)
"""What is tried, in this order, for a leg that failed before it had begun to answer."""
