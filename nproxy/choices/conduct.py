"""The conduct of one request: events of legs and timers go in, commands come out. It decides; the driver acts.

No IO, no clock, no randomness, no logging. The driver carries out the commands in order, reports events in the order in
which they happened, and stops at Finish, which is always the last command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, assert_never

from nproxy.choices.capability import Capability
from nproxy.choices.commands import (
    WITHOUT_ERROR,
    Anomaly,
    CallEnded,
    CancelLeg,
    Command,
    Emit,
    FallBack,
    Finish,
    Learn,
    OpenLeg,
    Outcome,
    Respond,
    SetTimer,
)
from nproxy.choices.events import (
    Event,
    Failure,
    FailureKind,
    LegBody,
    LegChunk,
    LegChunks,
    LegEnded,
    LegFailed,
    Stopped,
    Timer,
    TimerFired,
    TimerKind,
)
from nproxy.choices.failures import Losses, as_error
from nproxy.choices.learning import of_usage, of_width, width_brought
from nproxy.choices.merging import merge_for
from nproxy.choices.output_buffer import OutputBuffer
from nproxy.choices.plan import Plan, Way, seed_given, seed_sent, top_up, with_seeds
from nproxy.choices.reading import LegFault, begins_events, read_events
from nproxy.choices.recovery import Recovery
from nproxy.choices.remedies import unscored
from nproxy.choices.roster import LegRun, Roster
from nproxy.choices.segments import split_chunks
from nproxy.choices.settings import ConductSettings, Names
from nproxy.choices.states import LegState, Signal
from nproxy.choices.warming import WARM_SECONDS, held_back
from nproxy.openai.errors import ApiError
from nproxy.openai.requests import Request
from nproxy.openai.sse import BETWEEN, SSEEvent
from nproxy.openai.wire import PING, error_event

_DRAIN_SECONDS = 0.5  # for an upstream to close its answer after `[DONE]`; only then can the connection be reused

# What every request and every chunk asks for, read from its enum once, as CHAT in openai/dialect.py is.
_CALLED = LegState.CALLED
_OPEN, _SPEAK, _END = Signal.OPEN, Signal.SPEAK, Signal.END

# Chunks of a batch that may be parsed one by one before all the rest are: the rewriter needs a role and two texts.
_MOST_TRIES = 5


class Conduct:
    """Conducts one request from its plan to Finish.

    budget: takes one retry from the retry budget; returns whether it was granted. jitter: returns a number from 0 up
    to, not including, 1. draw: returns a random seed from 0 to 2**31 - 1, for legs that are added later. begun: the
    client was sent the head of a stream, and pings, while another upstream was asked.
    """

    def __init__(
        self,
        request: Request,
        plan: Plan,
        capability: Capability,
        settings: ConductSettings,
        names: Names,
        budget: Callable[[], bool],
        jitter: Callable[[], float],
        draw: Callable[[], int],
        begun: bool = False,
    ) -> None:
        self._request = request
        self._plan = plan
        self._capability = capability
        self._settings = settings
        self._merge = merge_for(request, plan, capability, settings, names)
        self._legs = self._merge.legs
        self._held = held_back(plan.legs)  # the legs that wait for another one, by this one
        held = {*chain(*self._held.values())} if self._held else ()
        self._roster = Roster(plan.legs, partial(with_seeds, request, capability, draw), held)
        notes = self._merge.notes
        self._recovery = Recovery(request, capability, self._roster, self._legs, notes, settings, budget, jitter)
        self._losses = Losses(settings.partial and plan.n <= request.n)  # best_of needs all
        self._gathering = False
        self._said_all: list[int] = []  # legs that have sent everything, as of the events being received
        self._draining: set[int] = set()
        self._outcome: Outcome | None = None
        self._end_status = 200
        self._over = False
        self._buffer = OutputBuffer(settings.ping_seconds, self._merge.frames, begun)
        self._commands: list[Command] = []

    def start(self) -> list[Command]:
        """Return the first commands: open the first legs, set the first timers. Called once."""
        if not seed_sent(self._request, self._capability) and seed_given(self._request):
            self._commands.append(Anomaly("seed_omitted"))
        if self._buffer.begun:
            self._commands.append(self._buffer.next_tick())
        elif self._request.stream:
            self._commands.append(SetTimer(Timer(TimerKind.HEADERS), self._settings.headers_after_seconds))
        if self._held:
            self._commands.append(SetTimer(Timer(TimerKind.WARM), WARM_SECONDS))
        return self._decided()

    def receive(self, events: Sequence[Event]) -> list[Command]:
        """Take events and return the commands that follow. All Emits of one call leave in one write.

        Events of a leg that was cancelled or is unknown are ignored, and so is everything after Finish.
        """
        for event in events:
            if self._outcome is not None:
                break
            HANDLERS[type(event)](self, event)
        if self._said_all:
            self._drain()
        return self._decided()

    # ---- leg events

    def _chunk(self, event: LegChunk) -> None:
        run = self._roster.called.get(event.leg)
        if run is None:
            return
        try:
            counts = self._merge.chunk(event.leg, event.data, event.name)
        except LegFault as fault:
            self._faulty(run, fault.failure)
            return
        if not counts:
            if self._merge.outputs[event.leg].said_all:
                self._said_all.append(event.leg)
            return
        if run.state is _CALLED:
            self._spoke(run)
        if event.leg in self._held and self._merge.outputs[event.leg].generated:
            self._roster.release(self._held.pop(event.leg))

    def _chunks(self, event: LegChunks) -> None:
        """Take several chunks: runs of usual ones, most of a busy stream, in one step, others one by one."""
        rest = event.data
        for _ in range(_MOST_TRIES):
            rest = self._at_once(event.leg, rest)
            if not rest:
                return
            first, _, rest = rest.partition(BETWEEN)
            self._chunk(LegChunk(event.leg, first))
        for chunk in split_chunks(event.leg, rest) if rest else ():
            self._chunk(chunk)

    def _at_once(self, leg: int, data: bytes) -> bytes:
        """Take as many usual chunks from the front as possible in one step.

        Returns the chunks after them, which is all of `data` if none was taken.
        """
        run = self._roster.called.get(leg)
        if run is None or run.state is _CALLED or self._held:
            return data
        return self._merge.chunks(leg, data)

    def _body(self, event: LegBody) -> None:
        run = self._roster.called.get(event.leg)
        if run is None:
            return
        events: Sequence[SSEEvent] = ()
        try:
            if begins_events(event.body):
                events = read_events(event.body)
            else:
                self._merge.body(event.leg, event.body)
                self._spoke(run)
        except LegFault as fault:
            self._faulty(run, fault.failure)
        for chunk in events:
            self._chunk(LegChunk(event.leg, chunk.data, chunk.name))

    def _leg_ended(self, event: LegEnded) -> None:
        if run := self._roster.called.get(event.leg):
            self._ended(run, event.beside)

    def _leg_failed(self, event: LegFailed) -> None:
        if run := self._roster.called.get(event.leg):
            self._failed(run, event.failure)

    def _spoke(self, run: LegRun) -> None:
        self._roster.move(run, _SPEAK)
        if self._request.stream and not self._buffer.begun and not self._doomed:
            self._begin()

    def _ended(self, run: LegRun, beside: bool = False, cut: bool = False) -> None:
        """The answer is over: it was whole, or other legs bring what is missing, or it failed.

        beside: as in LegEnded. cut: the call broke off after its last choice had finished, so what follows the choices
        may be missing.
        """
        if self._held:
            self._roster.release(self._held.pop(run.leg.number, ()))
        try:
            missing = self._merge.end(run.leg.number)
        except LegFault as fault:
            if self._unplaced(run):
                return
            failure, lessons = self._recovery.broken_off(run, fault.failure, beside=beside)
            self._commands += lessons
            self._lost(run, failure)
            return
        self._commands.append(CallEnded(run.leg.number))
        self._roster.move(run, _END)
        output = self._merge.outputs[run.leg.number]
        if missing or run.leg.width > 1:
            self._note_width(run, missing, streamed=output.streamed)
        if output.streamed and not cut:
            self._commands += map(Learn, of_usage(self._request, self._capability, output))
        self._commands += self._recovery.succeeded(run, output.streamed)

    def _note_width(self, run: LegRun, missing: Sequence[int], *, streamed: bool) -> None:
        """Learn how many choices the upstream returns per call, and add legs for those that are missing."""
        leg, n, prompts = run.leg, self._plan.n, self._request.prompts
        got = width_brought(leg, missing, n, prompts)
        self._commands += map(Learn, of_width(self._request, self._capability, leg, got, streamed=streamed))
        if missing and not self._doomed:
            self._commands.append(Anomaly("short_answer"))
            self._roster.add(top_up(leg, missing, n, prompts, got))

    def _unplaced(self, run: LegRun) -> bool:
        """If it is unclear which prompts a leg's choices are for, and the client has none, ask prompt by prompt."""
        number = run.leg.number
        if self._request.stream or self._doomed or not self._merge.outputs[number].unplaced:
            return False
        self._commands += (CallEnded(number), *self._recovery.prompt_by_prompt(run))
        return True

    def _faulty(self, run: LegRun, failure: Failure) -> None:
        """Fail a leg because of what it sent, while its call is still open."""
        self._commands.append(CancelLeg(run.leg.number))
        self._failed(run, failure)

    def _failed(self, run: LegRun, failure: Failure) -> None:
        self._roster.release(self._held.pop(run.leg.number, ()))
        if self._merge.outputs[run.leg.number].whole:
            self._commands.append(Anomaly("cut_after_finish"))
            self._ended(run, cut=True)
        else:
            self._lost(run, failure)

    def _lost(self, run: LegRun, failure: Failure) -> None:
        """Not all choices of the leg came: recover it, or let the failure stand."""
        self._commands.append(CallEnded(run.leg.number, failure))
        given_up = self._doomed and not self._still_wanted(run)
        another_way = None if given_up else self._recovery.recover(run, failure)
        if another_way is None:
            self._roster.move(run, Signal.FAIL)
            self._losses.add(unscored(self._request, run.leg, failure))
            if failure.kind is FailureKind.SHORT and self._merge.outputs[run.leg.number].unplaced:
                self._losses.partial = False  # the client has read choices under what may be wrong indices
            if self._losses.partial:
                self._legs.give_up(run.leg.number, as_error([failure], retries_spent=False))
        else:
            self._commands += another_way

    # ---- timers

    def _timer(self, event: TimerFired) -> None:
        match event.timer.kind:
            case TimerKind.RETRY:
                run = self._roster.runs[event.timer.leg]
                if run.state is LegState.PAUSED:
                    self._roster.resume(run)
            case TimerKind.DRAIN:
                if caller := self._roster.called.get(event.timer.leg):
                    self._commands.append(CancelLeg(caller.leg.number))
                    self._ended(caller)
            case TimerKind.WARM:
                for waiting in self._held.values():
                    self._roster.release(waiting)
                self._held.clear()
            case TimerKind.GATHER:
                self._losses.gathered = True
            case TimerKind.HEADERS:
                if not self._buffer.begun and not self._doomed:
                    self._begin()
                    self._buffer.writes.append(PING)
            case TimerKind.PING:
                self._commands += self._buffer.tick()
            case _:
                assert_never(event.timer.kind)

    def _drain(self) -> None:
        """Limit how long legs that have sent everything may keep their calls open.

        An upstream that does not close its answer delays neither the end of the request nor a leg that waits for its
        turn.
        """
        for number in self._said_all:
            if number not in self._draining and number in self._roster.called:
                self._draining.add(number)
                self._commands.append(SetTimer(Timer(TimerKind.DRAIN, number), _DRAIN_SECONDS))
        self._said_all.clear()

    # ---- decisions

    def _decided(self) -> list[Command]:
        """Decide, if a leg has changed or a failure stands, and return the commands."""
        if self._outcome is None and (self._roster.changed or self._losses.failures):
            self._decide()
            self._roster.changed = False
        commands, self._commands = self._commands, []
        if self._buffer.writes and (emit := self._buffer.flush()) is not None:
            commands.append(emit)
        if self._merge.notes:
            commands += self._merge.notes
            self._merge.notes.clear()
        if self._outcome is not None and not self._over:
            self._over = True
            spent = self._merge.spent()
            if self._outcome not in WITHOUT_ERROR:  # an error tells the client of no tokens
                spent = replace(spent, client_prompt=None, client_completion=None)
            commands += (spent, Finish(self._outcome, self._end_status))
        return commands

    def _decide(self) -> None:
        """Open the legs that may be opened, and end the request if it is at its end."""
        if doomed := self._doomed:
            self._roster.drop_idle(keep=self._still_wanted)
        while self._roster.queue and (run := self._roster.next_waiting(self._recovery.parallel)):
            self._open(run)
        if doomed:
            self._wind_up()
        elif self._roster.unsettled == 0:
            self._succeed()

    def _open(self, run: LegRun) -> None:
        if self._recovery.omit:
            run.leg = replace(run.leg, omit=self._recovery.omit)
        run.alone = self._recovery.alone
        self._legs.add(run.leg)
        self._roster.move(run, _OPEN)
        self._commands.append(OpenLeg(run.leg, run.attempt, run.alone, run.waits))
        run.waits = False

    def _begin(self) -> None:
        self._commands += self._buffer.begin(self._way())

    def _way(self) -> Way:
        """Return the mode and the number of legs so far. With more legs than planned, the mode is fanout."""
        legs, planned = len(self._roster.runs), self._plan.way
        return planned if legs == planned.legs else Way("fanout", legs)

    # ---- the end

    @property
    def _doomed(self) -> bool:
        """Whether the request can only fail."""
        if not self._losses.failures:
            return False
        # one failure is enough; if a partial answer is allowed, nothing must be left
        return not (self._losses.partial and (self._roster.unsettled or self._merge.delivered))

    def _still_wanted(self, run: LegRun) -> bool:
        """Whether a leg is called again after the request has failed.

        It is if the client has read the beginning of a choice whose end the leg can still bring.
        """
        return self._buffer.begun and self._legs.owes(run.leg)

    def _succeed(self) -> None:
        """Every choice is finished, or some are and a partial answer is allowed."""
        if self._request.stream:
            self._buffer.writes.append(self._merge.close())
        else:
            headers: tuple[tuple[str, str], ...] = ()
            if self._losses.failures:
                headers = (("x-nproxy-partial", f"{self._merge.delivered}/{self._request.choices}"),)
            self._commands.append(Respond(200, self._merge.close(), self._way(), headers))
        self._finish("partial" if self._losses.failures else "ok")

    def _wind_up(self) -> None:
        """The request has failed: begin nothing new, and end it as soon as the client's error is known.

        If the client has read from a stream, the sibling legs run to their end. Otherwise the request ends at once if
        no other failure could be more telling, else when the failures of the next moment are known too.
        """
        spoken = self._buffer.spoken
        if self._roster.unsettled == 0 or (self._losses.conclusive and not spoken):
            error, kind = self._losses.error(retries_spent=self._recovery.retries_spent), self._losses.kind
            if self._settings.fallback_possible and self._losses.upstreams_own and not spoken:
                told, end_status = self._told(error)
                self._commands.append(FallBack((told, Finish(kind, end_status))))
                self._finish("fallback")
            else:
                self._tell(error)
                self._finish(kind)
        elif not self._gathering and not spoken:
            self._gathering = True
            self._commands.append(SetTimer(Timer(TimerKind.GATHER), self._settings.gather_seconds))

    def _stop(self, event: Stopped) -> None:
        """End the request, whatever its legs have brought or still would."""
        if event.error is None:
            self._finish("")
            return
        self._tell(event.error)
        self._finish("ended")

    def _tell(self, error: ApiError) -> None:
        """End the answer with an error."""
        told, self._end_status = self._told(error)
        if isinstance(told, Emit):
            self._buffer.writes.append(told.data)
        else:
            self._commands.append(told)

    def _told(self, error: ApiError) -> tuple[Respond | Emit, int]:
        """Return what tells the client of an error, and the status that Finish has then.

        It is the last event of a stream that has begun, else a whole answer.
        """
        if self._buffer.begun:
            return Emit(error_event(error)), error.status
        return Respond(error.status, error.envelope(), self._way(), tuple(error.headers.items())), 200

    def _finish(self, outcome: Outcome) -> None:
        self._outcome = outcome
        if not self._roster.called:
            return
        for run in self._roster.callers():
            self._roster.move(run, Signal.CANCEL)
            self._commands.append(CancelLeg(run.leg.number))


HANDLERS: Mapping[type[Event], Callable[[Conduct, Any], None]] = {
    LegChunk: Conduct._chunk,
    LegChunks: Conduct._chunks,
    LegBody: Conduct._body,
    LegEnded: Conduct._leg_ended,
    LegFailed: Conduct._leg_failed,
    TimerFired: Conduct._timer,
    Stopped: Conduct._stop,
}
"""The handler of each type of event."""
