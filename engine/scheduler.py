"""Which sequences run in the next step. Counts, queues and tables only; no tensors, no clock, no randomness.

Order is age: the group's arrival, then the choice. Decoding sequences run in every step; what is left of
the token budget goes to prompts, oldest first. When blocks run out, the youngest running sequence gives
its blocks back and is computed again later; its siblings, and the prompt they share, stay.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection
from dataclasses import dataclass
from operator import attrgetter

from engine.batch import Batch, Chunk, Draw, Past, Row, StepOutput, plan_items
from engine.blocks import BlockPool, BlockTable
from engine.config import EngineConfig
from engine.messages import Add, Embed, Embedded, Logprobs, Ready, Sampling, Started, TokenDrawn
from engine.sequence import Finish, Sequence, SequenceGroup, State

_by_age = attrgetter("order")
_LOOK_AHEAD = 16  # waiting sequences that are looked at per admission


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step gave, as the messages tell it."""

    tokens: tuple[TokenDrawn, ...] = ()
    started: tuple[Started, ...] = ()
    embedded: tuple[Embedded, ...] = ()


class Scheduler:
    """Queues, block tables and the rules that move sequences between them.

    Every `schedule` is followed by exactly one `receive` or `abort_batch` for its batch, before anything
    else is called. The counters run from the start.
    """

    def __init__(self, config: EngineConfig, ready: Ready) -> None:
        self.pool = BlockPool(ready.blocks, ready.block_size)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.forks = 0
        self.preemptions = 0
        self.prompt_tokens_computed = 0
        self.tokens_drawn = 0
        self._config = config
        self._max_model_len = ready.max_model_len
        self._groups: dict[int, SequenceGroup] = {}
        self._sequences: dict[int, Sequence] = {}
        self._arrivals = 0
        self._numbered = 0

    @property
    def living(self) -> int:
        """Sequences that are not done, running or not."""
        return len(self._sequences)

    # What comes and goes

    def refusal(self, message: Add | Embed) -> str | None:
        """Why a group can never run here, as a sentence for the client; None if it can."""
        new = [choice.max_tokens for choice in message.choices] if isinstance(message, Add) else [0]
        prompt, n, size = len(message.prompt), len(new), self.pool.block_size
        if prompt == 0 or n < 1 or (isinstance(message, Add) and min(new) < 1):
            return "a request needs a prompt of at least one token, one choice and one new token"
        if n > self._config.max_sequences:
            return f"n={n} is more than the {self._config.max_sequences} sequences that this engine runs at once"
        if prompt + min(max(new), 1) > self._max_model_len:
            return f"the prompt has {prompt} tokens; the model takes {self._max_model_len} with the answer"
        # All n leave prefill together, each with a block to write to; later the oldest goes on alone if it must.
        longest = min(prompt + max(new), self._max_model_len)
        blocks = max(prompt // size + n, -(-longest // size))
        if blocks > self.pool.size:
            return f"the request needs {blocks} blocks of {size} tokens of KV cache; there are {self.pool.size}"
        return None

    def crowded(self, message: Add | Embed) -> str | None:
        """Why a group cannot be queued now, as a sentence for the client; None if it can."""
        n = len(message.choices) if isinstance(message, Add) else 1
        if self.living + n > self._config.max_sequences + self._config.max_queue:
            return f"{self.living} sequences run or wait already, too many for {n} more"
        return None

    def add(self, message: Add | Embed) -> None:
        """Queue a group for which `refusal` and `crowded` are None, its first choice as leader."""
        group = SequenceGroup(message.group, self._arrivals, message.prompt, salt=message.salt, adapter=message.adapter)
        self._arrivals += 1
        self._groups[group.id] = group
        match message:
            case Embed():
                group.pooling = message.pooling
                self._add_sequence(group, 0, 0, Sampling())
            case Add():
                group.stop_tokens = message.stop_tokens
                group.logprobs, group.prompt_logprobs = message.logprobs, message.prompt_logprobs
                room = self._max_model_len - len(message.prompt)
                for choice in message.choices:
                    self._add_sequence(group, choice.seed, min(choice.max_tokens, room), choice.sampling)
        self.waiting.append(group.sequences[0])

    def _add_sequence(self, group: SequenceGroup, seed: int, limit: int, sampling: Sampling) -> None:
        state = State.FOLLOWING if group.sequences else State.WAITING
        sequence = Sequence(self._numbered, group, len(group.sequences), seed, limit, sampling, state)
        self._numbered += 1
        self._sequences[sequence.id] = sequence
        group.sequences.append(sequence)

    def abort(self, group: int, choices: Collection[int] | None = None) -> None:
        """End these choices of a group, all of them for None; what is unknown or over is ignored."""
        if found := self._groups.get(group):
            for sequence in found.living():
                if choices is None or sequence.choice in choices:
                    self._end(sequence)

    def abort_batch(self, batch: Batch) -> list[int]:
        """End every group that takes part in a batch that could not be run; returns their ids."""
        ids = [chunk.sequence for chunk in batch.chunks] + [row.sequence for row in batch.rows]
        groups = sorted({self._sequences[number].group.id for number in ids})
        for group in groups:
            self.abort(group)
        return groups

    # A step

    def schedule(self) -> Batch:
        """Choose the next step's work, and give it the blocks that it writes to."""
        self._make_room()
        rows = tuple([self._row(sequence) for sequence in self.running if sequence.state is State.DECODE])
        chunks = self._chunks(self._config.max_batch_tokens - len(rows))
        items = plan_items(rows, self.pool.block_size, gate=self._config.share_gate)
        return Batch(self.pool.drain_copies(), chunks, rows, items)

    def receive(self, batch: Batch, output: StepOutput) -> Outcome:
        """Take in what a step drew: fork the groups that leave prefill, end the sequences that are done."""
        started: list[Started] = []
        embedded: list[Embedded] = []
        for chunk in batch.chunks:
            sequence = self._sequences[chunk.sequence]
            group = sequence.group
            sequence.computed += len(chunk.tokens)
            self.prompt_tokens_computed += max(min(sequence.computed, len(group.prompt)) - chunk.start, 0)
            if group.scoring:
                group.scores += output.prompt_logprobs.get(sequence.id, ())
            if pooled := output.pooled.get(sequence.id):
                group.hidden = [a + b for a, b in zip(group.hidden, pooled, strict=True)] or list(pooled)
            if chunk.pooling and chunk.last:
                embedded.append(_embedded(group))
                self._end(sequence)
            if chunk.draws:
                self._leave_prefill(sequence)
                if not group.started:
                    started.append(_started(group))
                    group.started = True
        self.tokens_drawn += len(output.tokens)
        tokens = [
            self._extend(self._sequences[number], token, output.logprobs.get(number)) for number, token in output.tokens
        ]
        return Outcome(tuple(tokens), tuple(started), tuple(embedded))

    def _row(self, sequence: Sequence) -> Row:
        position = sequence.length - 1
        index = position // self.pool.block_size
        if index == len(sequence.blocks):
            sequence.blocks = (*sequence.blocks, *self.pool.take())
        else:
            sequence.blocks = self.pool.own(sequence.blocks, index)
        draw, adapter = _draw(sequence), sequence.group.adapter
        return Row(sequence.id, sequence.output[-1], position, sequence.blocks, draw, adapter)

    def _chunks(self, budget: int) -> tuple[Chunk, ...]:
        """Prompts in computation first, then new ones while tokens, sequences and blocks allow."""
        chunks: list[Chunk] = []
        for sequence in [sequence for sequence in self.running if sequence.state is State.PREFILL]:
            if chunk := self._chunk(sequence, budget):
                chunks.append(chunk)
                budget -= len(chunk.tokens)
        while budget >= self.pool.block_size and (admitted := self._admit()) is not None:
            if chunk := self._chunk(admitted, budget):
                chunks.append(chunk)
                budget -= len(chunk.tokens)
        return tuple(chunks)

    def _chunk(self, sequence: Sequence, budget: int) -> Chunk | None:
        start, left = sequence.computed, sequence.length - sequence.computed
        # Cut at whole blocks, so that no block is written by two chunks.
        size = left if left <= budget else budget // self.pool.block_size * self.pool.block_size
        if size <= 0:
            return None
        end = start + size
        group = sequence.group
        leaving: list[Sequence] = []
        if size == left and not group.pooling:
            leaving = [sequence] if sequence.output else group.living()
        return Chunk(
            sequence.id,
            sequence.tokens[start:end],
            start,
            sequence.blocks[: -(-end // self.pool.block_size)],
            tuple([_draw(one) for one in leaving]),
            group.prompt[start + 1 : end + 1] if group.scoring else (),
            group.prompt_logprobs or 0,
            group.pooling,
            size == left,
            group.adapter,
        )

    def _leave_prefill(self, leader: Sequence) -> None:
        leader.move(State.DECODE)
        followers = [sequence for sequence in leader.group.sequences if sequence.state is State.FOLLOWING]
        self.pool.fork(leader.blocks, len(followers))
        self.forks += len(followers)
        for follower in followers:
            follower.blocks = leader.blocks
            follower.move(State.DECODE)
            insort(self.running, follower, key=_by_age)

    def _extend(self, sequence: Sequence, token: int, logprobs: Logprobs | None) -> TokenDrawn:
        group = sequence.group
        sequence.output.append(token)
        finish: Finish | None = None
        if token in group.stop_tokens:
            finish = "stop"
        elif len(sequence.output) >= sequence.limit:
            finish = "length"
        if finish is not None:
            self._end(sequence)
        return TokenDrawn(group.id, sequence.choice, token, finish, logprobs)

    def _end(self, sequence: Sequence) -> None:
        """Take a sequence out; the first follower takes the place of a leader, with all it holds."""
        group, state = sequence.group, sequence.state
        queue = self.waiting if state is State.WAITING else self.running
        heir = next((one for one in group.sequences if one.state is State.FOLLOWING), None)
        if state is State.FOLLOWING:
            pass  # in no queue, holding nothing
        elif heir is not None:
            heir.blocks, heir.computed = sequence.blocks, sequence.computed
            heir.move(state)
            queue[queue.index(sequence)] = heir
        else:
            self.pool.release(sequence.blocks)
            queue.remove(sequence)
        sequence.blocks = ()
        sequence.move(State.DONE)
        del self._sequences[sequence.id]
        if not group.living():
            del self._groups[group.id]

    # Room: preemption

    def _make_room(self) -> None:
        """Preempt the youngest until every decoding sequence has a block to write to.

        Done before any block of the step is given out: between copies nothing may be released (BlockPool).
        """
        while self.running and self._blocks_wanted() > self.pool.free:
            self._preempt(self.running.pop())

    def _blocks_wanted(self) -> int:
        """Blocks that this step's rows will take: new ones, and copies of blocks that others still hold."""
        if len(self.running) <= self.pool.free:
            return 0  # at most one each: no need to count
        wanted = 0
        left: dict[int, int] = {}
        for sequence in self.running:
            if sequence.state is State.DECODE:
                index = (sequence.length - 1) // self.pool.block_size
                if index == len(sequence.blocks):
                    wanted += 1
                    continue
                block = sequence.blocks[index]
                holders = left.get(block, self.pool.holders(block))
                if holders > 1:
                    wanted += 1
                    left[block] = holders - 1
        return wanted

    def _preempt(self, sequence: Sequence) -> None:
        self.pool.release(sequence.blocks)
        sequence.blocks, sequence.computed = (), 0
        if not sequence.output:
            sequence.group.scores.clear()
            sequence.group.hidden.clear()
        sequence.move(State.WAITING)
        insort(self.waiting, sequence, key=_by_age)
        self.preemptions += 1

    # Room: admission

    def _admit(self) -> Sequence | None:
        """Start the next waiting sequence, if one can.

        The oldest goes first. While it does not fit, younger ones may overtake it, but all in all no more
        sequences than it has itself: a narrow request slips past a wide one, and the wide one's turn
        comes. A preempted sequence is not overtaken, since what it waits for is the blocks.
        """
        slots = sum([_width(sequence) for sequence in self.running]) if self.waiting else 0
        passed: list[SequenceGroup] = []
        for index, sequence in enumerate(self.waiting[:_LOOK_AHEAD]):
            width = _width(sequence)
            if any(group.overtaken + width > len(group.sequences) for group in passed):
                return None
            inherited = self._inherited(sequence)
            if inherited is not None and self._fits(sequence, width, slots, len(inherited)):
                for group in passed:
                    group.overtaken += width
                del self.waiting[index]
                self._start(sequence, inherited)
                return sequence
            if sequence.output:
                return None
            passed.append(sequence.group)
        return None

    def _fits(self, sequence: Sequence, width: int, slots: int, inherited: int) -> bool:
        """Room for all its known tokens and the first new block of each sequence that will leave prefill.

        One further block for each sequence that already runs stays untouched: who is let in too early is
        preempted a few steps later and computed twice.
        """
        blocks = sequence.length // self.pool.block_size + width - inherited
        return slots + width <= self._config.max_sequences and blocks + slots <= self.pool.free

    def _inherited(self, sequence: Sequence) -> BlockTable | None:
        """The full prompt blocks that a preempted sequence can take over from a running sibling.

        None: a sibling is computing the prompt again just now, and waiting for it saves doing so twice.
        """
        full = len(sequence.group.prompt) // self.pool.block_size
        for sibling in sequence.group.sequences:
            if sibling.state is State.DECODE:
                return sibling.blocks[:full]
            if sibling.state is State.PREFILL:
                return sibling.blocks[:full] if sibling.computed >= full * self.pool.block_size else None
        return ()

    def _start(self, sequence: Sequence, inherited: BlockTable) -> None:
        missing = -(-sequence.length // self.pool.block_size) - len(inherited)
        sequence.blocks = (*self.pool.fork(inherited), *self.pool.take(missing))
        sequence.computed = len(inherited) * self.pool.block_size
        if sequence.group.cached_tokens is None:
            sequence.group.cached_tokens = sequence.computed
        sequence.move(State.PREFILL)
        insort(self.running, sequence, key=_by_age)


def _width(sequence: Sequence) -> int:
    """Sequences that run, or will once it leaves prefill: all living siblings of a group's leader."""
    return 1 if sequence.output else len(sequence.group.living())


def _draw(sequence: Sequence) -> Draw:
    group, sampling = sequence.group, sequence.sampling
    return Draw(
        sequence.id,
        sequence.seed,
        sequence.length,
        sampling,
        Past(group.prompt, sequence.output) if sampling.edits else None,
        group.stop_tokens if len(sequence.output) < sampling.min_tokens else frozenset(),
        group.logprobs,
    )


def _started(group: SequenceGroup) -> Started:
    scores = None if group.prompt_logprobs is None else (None, *group.scores)
    return Started(group.id, group.cached_tokens or 0, scores)


def _embedded(group: SequenceGroup) -> Embedded:
    count = len(group.prompt) if group.pooling == "mean" else 1
    return Embedded(group.id, tuple([value / count for value in group.hidden]))
