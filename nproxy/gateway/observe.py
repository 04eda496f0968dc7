"""Records one generation request in the metrics, in its access log line, and in what its key has spent.

The driver calls it as things happen. Nothing is decided by what is counted here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from nproxy.choices.commands import ChoiceFinished, Spent
from nproxy.choices.events import Event, Failure, LegChunk, LegChunks
from nproxy.choices.leg import Leg
from nproxy.gateway.record import Record
from nproxy.telemetry.metrics import Metrics
from nproxy.upstreams.verdicts import CANCELLED, OK, outcome_of

_REASONS = frozenset({"stop", "length", "tool_calls", "function_call", "content_filter", "abort", "error"})
"""The finish reasons that are labels of metrics."""


class Charged(Protocol):
    """The account that a request's tokens are charged to."""

    def spend(self, prompt: int, completion: int) -> None:
        """Note that so many tokens were spent, as reported to the client."""

    def spent_at_least(self, tokens: int) -> None:
        """Note that at least so many more tokens have come, whether or not they will be reported to the client."""


class Observer:
    """Counts the legs, choices, tokens and times of one request under its labels."""

    __slots__ = (
        "_account",
        "_begun",
        "_clock",
        "_completion",
        "_count_call",
        "_first",
        "_first_finish",
        "_labels",
        "_last",
        "_last_finish",
        "_metrics",
        "_opened",
        "_record",
        "_series",
        "_spans",
    )

    def __init__(
        self, metrics: Metrics, record: Record, account: Charged, count_call: Callable[[int, str, int | None], None]
    ) -> None:
        """account: charged with the tokens. count_call: called when a leg's call has ended, with the leg's number, the
        outcome, and the status of its error.
        """
        self._account = account
        self._count_call = count_call
        self._metrics = metrics
        self._labels = (record.endpoint, record.upstream, record.model)
        self._record, self._spans = record, record.tracing.spans
        self._clock = time.monotonic
        self._opened: dict[int, float] = {}  # when the calls began whose ends are not counted yet, by leg
        self._begun: dict[int, float] = {}  # when the first batch of each leg came
        self._last: dict[int, float] = {}  # when the last one came
        self._series = metrics.of_call(*self._labels)
        self._first = self._first_finish = self._last_finish = 0.0
        self._completion = 0

    def leg_opened(self, leg: Leg, attempt: int) -> None:
        """Note that a leg is called, for the `attempt`-th time."""
        self._metrics.leg_width.observe(leg.width)
        self._series.inflight.value += 1
        self._opened[leg.number] = self._clock()
        self._last.pop(leg.number, None)
        if self._spans is not None:
            self._spans.leg_opened(leg, attempt)

    def leg_closed(self) -> None:
        """Note that a call is over, whether or not its answer is usable."""
        self._series.inflight.value -= 1

    def call_ended(self, leg: int, failure: Failure | None) -> None:
        """Note the result of a leg's last call. That a complete answer is malformed, for example, is known only now."""
        if failure is None:
            self._count(leg, OK)
        else:
            self._count(leg, outcome_of(failure), failure.status)
            if failure.unmade:
                self._metrics.refused("calls").inc()
        if self._spans is not None:
            self._spans.call_ended(leg, failure)

    def batch(self, leg: int, events: Sequence[Event]) -> None:
        """Note one batch of a leg's events."""
        chunks = 0
        for event in events:
            if type(event) is LegChunk:  # if it is another type, `isinstance` takes five times as long
                chunks += 1
            elif type(event) is LegChunks:
                chunks += event.count
        if chunks:
            self._account.spent_at_least(chunks)
            now = self._clock()
            last = self._last.get(leg)
            if last is not None:
                self._series.gaps.observe(now - last)
            else:
                self._begun[leg] = now
                self._spoke(leg, now)
            self._last[leg] = now

    def _spoke(self, leg: int, now: float) -> None:
        """Note that the first chunk of a call's answer has come."""
        if not self._first:
            self._first = now
            self._record.first_token_seconds = seconds = now - self._record.started
            self._metrics.first_token(*self._labels).observe(seconds, self._record.tracing.exemplar)
        if self._spans is not None:
            self._spans.spoke(leg)

    def choice_finished(self, command: ChoiceFinished) -> None:
        """Note a choice's finish reason."""
        reason = command.finish_reason if command.finish_reason in _REASONS else "other"  # upstreams invent reasons
        self._series.choices[reason].value += 1
        self._record.finish_reasons[command.index] = reason
        if self._spans is not None:
            self._spans.choice_finished(command.index, reason)
        if self._record.choices > 1:
            self._last_finish = self._clock()
            self._first_finish = self._first_finish or self._last_finish

    def spent(self, spent: Spent) -> None:
        """Note the tokens that were spent."""
        tokens, prompt, completion = self._series.tokens, spent.client_prompt, spent.client_completion
        if prompt:
            tokens["prompt", "client"].total += prompt  # only the sum is shown
        if completion:
            tokens["completion", "client"].total += completion
        if spent.upstream_prompt:
            tokens["prompt", "upstream"].observe(spent.upstream_prompt)
        if spent.upstream_completion:
            tokens["completion", "upstream"].observe(spent.upstream_completion)
        self._record.prompt_tokens, self._record.completion_tokens = prompt, completion
        if prompt is not None and completion is not None:
            self._completion = completion
            self._account.spend(prompt, completion)
        if spent.prompt_saved:
            self._metrics.prompt_saved(self._record.upstream, self._record.model).inc(spent.prompt_saved)

    def anomaly(self, kind: str) -> None:
        """Note an oddity of the upstream."""
        self._metrics.anomalies(self._record.upstream, kind).inc()

    def retried(self, leg: int, reason: str) -> None:
        """Note that a leg will be called again, and why."""
        self._metrics.retries(self._record.upstream, reason).inc()
        if self._spans is not None:
            self._spans.retried(leg, reason)

    def resumed(self, leg: int, how: str, outcome: str) -> None:
        """Note how a leg that broke off was resumed, and what came of it."""
        self._metrics.resumes(self._record.upstream, how, outcome).inc()
        if self._spans is not None:
            self._spans.resumed(leg, how, outcome)

    def ended(self) -> None:
        """Note that the request is over here, and count the calls that are cut short as cancelled."""
        while self._opened:
            self._count(next(iter(self._opened)), CANCELLED)
        if self._spans is not None:
            self._spans.left_upstream()
        if self._first_finish:
            skew = self._metrics.skew(self._record.upstream, self._record.model)
            skew.observe(self._last_finish - self._first_finish)
        if self._last and self._record.outcome == "ok":
            following = self._completion / self._record.choices - 1  # of one choice: they stream side by side
            if following > 0:
                longest = max(last - self._begun[leg] for leg, last in self._last.items())  # calls may wait for others
                self._metrics.per_token(*self._labels).observe(longest / following)

    def _count(self, leg: int, outcome: str, status: int | None = None) -> None:
        """Count a call that is over. status: of the upstream's error, if it answered with one."""
        opened = self._opened.pop(leg, None)
        if opened is not None:
            self._series.legs[outcome].observe(self._clock() - opened, self._record.tracing.exemplar)
            self._count_call(leg, outcome, status)
