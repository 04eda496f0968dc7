"""The engine's core: add, abort, step. Synchronous; the core process, the library and the tests call it in the same
way.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from engine.batch import Batch, StepOutput, Stuck
from engine.config import EngineConfig
from engine.errors import CoreFailed
from engine.grammar import Grammars
from engine.kv_spans import Reads, count_reads
from engine.messages import Abort, Add, Embed, Embedded, GroupFailed, Logprobs, Ready, Stats, StepDone
from engine.scheduler import Scheduler
from engine.step_in_flight import Outcome

_log = logging.getLogger(__name__)
_FAILURES_IN_A_ROW = 3
_STUCK: dict[Stuck, tuple[str, Literal["unsatisfiable", "failed"]]] = {
    "rules": (
        "no token is left to sample: allowed tokens, bad words, min_tokens and grammar exclude all tokens",
        "unsatisfiable",
    ),
    "logits": ("the model's logits are not finite numbers", "failed"),
}
_NO_VECTOR = "the model's hidden states are not finite numbers"


class Pending(Protocol):
    """A step that has been submitted."""

    def result(self) -> StepOutput:
        """Wait for the step and return every drawn token in the order of StepOutput. Raises what the step raised.

        To be called once, for the oldest step first.
        """
        ...


class Runner(Protocol):
    """What runs a step: a loaded model with its KV cache, or a deterministic stand-in in tests."""

    @property
    def ready(self) -> Ready:
        """What was loaded, and how large the block pool is; fixed once loaded."""
        ...

    @property
    def overlaps(self) -> bool:
        """Whether a step runs while the host does something else, with its tokens left where the next step
        finds them.
        """
        ...

    def submit(self, batch: Batch) -> Pending:
        """Carry out copies, then chunks, then rows, after everything that was submitted before.

        Raises if this fails at once; sequences that are not part of the batch go on, with what the batch before has
        drawn. A runner that overlaps returns before the step is done, and has at most two steps to carry out; another
        may compute the step here.
        """
        ...


_Finished = tuple[Batch, float, Outcome]  # a batch whose step is over, when it began, and its outcome


@dataclass(frozen=True, slots=True)
class _Submitted:
    """A batch that the runner has. began: when its scheduling began, by the clock of `time.perf_counter`."""

    batch: Batch
    pending: Pending
    began: float


class Core:
    """Scheduler and runner together: the answers to added groups are computed over the following steps.

    Single-threaded; it never waits for anything except the runner (and for a grammar, if `wake` is None). The same
    messages in the same order give the same tokens, whether steps overlap or not. If they overlap, a step is scheduled
    and submitted before the result of the step before is taken, so that the device keeps running while the host reports
    and plans (ADR 0021).

    tokenizer: the text of a tokenizer.json; if it is None, grammars are refused. wake: called from another thread when
    a group's grammar has been compiled, so that there is work; if it is None, `add` compiles the grammar and waits for
    it.
    """

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        tokenizer: str | None = None,
        wake: Callable[[], None] | None = None,
    ) -> None:
        self.ready = runner.ready
        self.scheduler = Scheduler(config, runner.ready)
        self.grammars = Grammars(tokenizer, runner.ready, wake)
        self._runner = runner
        self._submitted: deque[_Submitted] = deque()
        self._kept = 1 if runner.overlaps else 0  # batches that stay in flight when a step returns
        self._ended = 0.0  # when the newest outcome was reported
        self._failed: list[GroupFailed] = []
        self._changed = False  # something ended outside a step: the counts must be reported
        self._taken = 0
        self._failures = 0
        self._steps = 0
        self._reads = Reads()
        self._midway = False

    @property
    def cut_short(self) -> bool:
        """Whether something was raised in the middle of a step, as by Ctrl-C: then the state is of no use any more."""
        return self._midway

    @property
    def places_taken(self) -> int:
        """The number of sequences that run, wait, or are held until their grammar is compiled."""
        return self.scheduler.living + self.grammars.held

    @property
    def has_work(self) -> bool:
        """Whether a step would do or report anything."""
        there = self.scheduler.running or self.scheduler.queue.waiting or self.grammars.due
        return bool(there or self._submitted or self._failed or self._changed)

    def add(self, message: Add | Embed) -> None:
        """Queue a group.

        If it can never run here, or cannot be queued now, the next step's outcome reports that it failed.
        """
        self._taken += 1
        if reason := self.scheduler.limits.refusal(message):
            self._failed.append(GroupFailed(message.group, reason, "refused"))
        elif reason := self.scheduler.limits.why_full(message, self.places_taken):
            self._failed.append(GroupFailed(message.group, reason, "busy"))
        elif isinstance(message, Add) and message.grammar is not None:
            self.grammars.hold(message, message.grammar)
        else:
            self.scheduler.add(message)

    def abort(self, message: Abort) -> None:
        """End choices at once: when this returns their blocks are free, and no token of theirs follows."""
        self._taken += 1
        self.scheduler.abort(message.group, message.choices)
        self.grammars.abort(message.group, message.choices)
        self._changed = True

    def step(self) -> StepDone:
        """Schedule and submit a batch; if the oldest batch's result is due, take and report it.

        Raises CoreFailed if several steps in a row cannot be run.
        """
        began = time.perf_counter()
        self._midway = True
        self._release()
        done = self._take() if self._submitted and self.scheduler.hindered else None
        batch = self.scheduler.schedule()
        work = bool(batch.rows or batch.chunks)
        if work and not self._submit(batch, began):
            done = done or (batch, began, Outcome())
        elif len(self._submitted) > self._kept or (self._submitted and not work):
            done = self._take()
        batch, since, outcome = done or (Batch(), began, Outcome())
        failed, self._failed, self._changed = tuple(self._failed), [], False
        since, now = max(since, self._ended), time.perf_counter()
        if done:
            self._ended = now
        self._midway = False
        return StepDone(
            tokens=outcome.tokens,
            failed=failed,
            seconds=now - since,
            batch_sequences=len(batch.rows) + len(batch.chunks),
            stats=self.stats(),
            taken=self._taken,
            started=outcome.started,
            embedded=outcome.embedded,
        )

    def _release(self) -> None:
        """Queue the groups whose grammars have been compiled since the last step."""
        for add, grammar, aborted in self.grammars.release():
            if isinstance(grammar, str):
                self._failed.append(GroupFailed(add.group, grammar, "grammar"))
            else:
                self.grammars.follow(add.group, self.scheduler.add(add), grammar)
                self.scheduler.abort(add.group, aborted)

    def _submit(self, batch: Batch, began: float) -> bool:
        """Give a batch to the runner. Return False, with the batch's groups ended, if the runner does not take it."""
        try:
            masks = self.grammars.masks(batch)
            pending = self._runner.submit(replace(batch, masks=masks) if masks else batch)
        except BaseException as error:
            self._fail(batch, error)
            return False
        self._submitted.append(_Submitted(batch, pending, began))
        return True

    def _take(self) -> _Finished:
        """Wait for the oldest batch that was submitted, and process its result."""
        one = self._submitted.popleft()
        try:
            output = one.pending.result()
        except BaseException as error:
            self._fail(one.batch, error)
            return one.batch, one.began, Outcome()
        self._failures = 0
        self._steps += 1
        self._reads += count_reads(one.batch.rows, one.batch.kv_spans)
        against = self.grammars.advance([drawn for drawn in output.tokens if self.scheduler.lives(drawn[0])])
        outcome = self.scheduler.receive(one.batch, output)
        ended = {group: GroupFailed(group, *_STUCK[why]) for group, why in outcome.stuck.items()}
        ended |= {group: GroupFailed(group, reason, "grammar") for group, reason in against.items()}
        lost = [one.group for one in outcome.started if any(map(_is_nan, one.prompt_logprobs or ()))]
        lost += [drawn.group for drawn in outcome.tokens if _is_nan(drawn.logprobs)]
        ended |= {group: GroupFailed(group, *_STUCK["logits"]) for group in lost}
        for group, failure in ended.items():
            self.scheduler.abort(group)
            self._failed.append(failure)
            outcome = replace(outcome, tokens=tuple([drawn for drawn in outcome.tokens if drawn.group != group]))
        if outcome.embedded:
            outcome = replace(outcome, embedded=self._finite(outcome.embedded))
        self.grammars.keep(self.scheduler.lives)
        return one.batch, one.began, outcome

    def _finite(self, embedded: tuple[Embedded, ...]) -> tuple[Embedded, ...]:
        """Return the vectors that consist of finite numbers; the groups of the others have failed."""
        good = [one for one in embedded if all(map(math.isfinite, one.vector))]
        lost = {one.group for one in embedded}.difference([one.group for one in good])
        self._failed += [GroupFailed(group, _NO_VECTOR, "failed") for group in sorted(lost)]
        return tuple(good)

    def _fail(self, batch: Batch, error: BaseException) -> None:
        """End the groups of a batch that could not be run; raise CoreFailed after several failures in a row.

        What is no Exception is raised again: Ctrl-C in a program that uses the library, which may ask again.
        """
        message = "the engine failed while computing this answer"
        self._failed += [GroupFailed(group, message, "failed") for group in self.scheduler.abort_batch(batch)]
        if not isinstance(error, Exception):
            self._midway = False  # all is as if the batch had never been
            raise error
        _log.error("a step of %d rows and %d chunks failed", len(batch.rows), len(batch.chunks), exc_info=error)
        self._failures += 1
        if self._failures >= _FAILURES_IN_A_ROW:
            raise CoreFailed(f"{self._failures} steps in a row failed, the last with {type(error).__name__}") from error

    def stats(self) -> Stats:
        """Return the counters since start, and the gauges as they are now."""
        scheduler, pool, unit = self.scheduler, self.scheduler.pool, self.ready.kv_bytes_per_token
        return Stats(
            blocks_used=pool.used,
            blocks_cached=pool.cached,
            blocks_free=pool.free,
            blocks_shared=pool.shared,
            peak_blocks=pool.peak,
            running=len(scheduler.running),
            waiting=self.places_taken - len(scheduler.running),
            forks=scheduler.forks,
            block_copies=pool.copies,
            preemptions=scheduler.preemptions,
            gave_way=scheduler.gave_way,
            steps=self._steps,
            prompt_tokens_computed=scheduler.prompt_tokens_computed,
            tokens_drawn=scheduler.tokens_drawn,
            kv_bytes_read=self._reads.items * unit,
            prefix_kv_bytes_read=self._reads.shared * unit,
            kv_bytes_unshared=self._reads.unshared * unit,
            prefix_cache_hits=scheduler.cache_hits,
            prefix_cache_misses=scheduler.cache_misses,
        )


def _is_nan(logprobs: Logprobs | None) -> bool:
    """Whether there is a log probability that is no number, because a logit beside it is not finite.

    Minus infinity is a result: that of a token whose logit is minus infinity.
    """
    return logprobs is not None and math.isnan(logprobs.own)
