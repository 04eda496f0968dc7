"""The scheduler: which sequences run in the next step. Counts, queues and tables only; no tensors, no clock, no
randomness.

Sequences are ordered by age: by their group's arrival, then by choice. Decoding sequences run in every step that can
run them (Sequence.ready); prompts get what is left of the token budget. If there are too few blocks, the youngest
running sequence of the widest group is preempted: it gives its blocks back and is computed again later, while its
siblings, and the prompt they share, stay. The same sequence is preempted for a group that has waited long enough
(Queue.claim): however wide some requests are, each of the others gets a sequence to run. A wide group that has waited
very long starts with its leader alone.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Collection, Iterator
from typing import assert_never

from engine import batch_entries, chunking, prefix
from engine.admission import Queue, blocks_wanted, by_age, giving_way
from engine.batch import Batch, Row, StepOutput, Stuck
from engine.blocks import BlockPool
from engine.config import EngineConfig
from engine.kv_spans import continue_kv_spans, plan_kv_spans
from engine.limits import Limits
from engine.messages import Add, Embed, Embedded, Logprobs, Ready, Sampling, Started, TokenDrawn
from engine.sequence import Finish, Gathered, Sequence, SequenceGroup, State
from engine.step_in_flight import Outcome, StepInFlight, embedded, publish, started


class Scheduler:
    """The queue, the block tables, and the rules that move sequences between states.

    At most two batches are in flight: `schedule` may be called once more before `receive` for the batch before. Each
    batch gets exactly one `receive`, in the order of the `schedule` calls, or one `abort_batch`: for the older batch if
    it failed, for the newer one if it could not be submitted. All other methods may be called in between. Steps also
    run in that order, so blocks that a batch in flight still reads or writes may be given to another sequence: that
    sequence runs later. What a step returns for a sequence that has ended in the meantime is ignored.

    The counters count from the start; cache_hits and cache_misses are prompt tokens.
    """

    def __init__(self, config: EngineConfig, ready: Ready) -> None:
        self.pool = BlockPool(ready.blocks, ready.block_size, keep=config.prefix_cache)
        self._tokens = ready.batch_tokens or config.batch_tokens(ready.device)
        self._gate = config.gate(ready.device, ready.kv_bytes_per_token // ready.layers)
        # Deterministic mode: requests share whole chunks only, because only these are always computed in the same way.
        self._fixed_chunk = chunking.fixed_size(config, self._tokens) if config.deterministic else None
        unit = self._fixed_chunk // ready.block_size if self._fixed_chunk else 1
        self.queue = Queue(self.pool, config.max_sequences, unit)
        self.running: list[Sequence] = []
        self.limits = Limits(config, ready)
        self.forks = 0
        self.preemptions = 0
        self.gave_way = 0  # of the preemptions, those for a claim
        self.prompt_tokens_computed = 0
        self.tokens_drawn = 0
        self.cache_hits = 0
        self.cache_misses = 0
        self._config = config
        self._max_model_len = ready.max_model_len
        self._groups: dict[int, SequenceGroup] = {}
        self._sequences: dict[int, Sequence] = {}
        self._flights: deque[StepInFlight] = deque()
        self._latest = Batch()  # the newest batch that was given out
        self._arrivals = 0
        self._numbered = 0

    @property
    def living(self) -> int:
        """The number of sequences that are not done, running or not."""
        return len(self._sequences)

    def lives(self, sequence: int) -> bool:
        """Whether the sequence with this id is not done."""
        return sequence in self._sequences

    @property
    def hindered(self) -> bool:
        """Whether more sequences wait for their token in flight than a step could run without it.

        If so, it is better to receive the batch in flight first: all sequences then wait for the host, but none of them
        runs in every second step only.
        """
        hindered = sum([sequence.hindered for sequence in self.running])
        return hindered > 0 and hindered > sum([sequence.ready for sequence in self.running]) + len(self._unfinished())

    # Groups that are added and ended

    def add(self, message: Add | Embed) -> list[int]:
        """Queue a group that the limits admit, with its first choice as leader; return its sequences' ids by choice."""
        # Without the prefix cache blocks are still found by their keys, but only by siblings, and only while held.
        scope = (message.salt, message.adapter) if self._config.prefix_cache else (self._arrivals,)
        group = SequenceGroup(message.group, self._arrivals, message.prompt, prefix.root(*scope))
        group.adapter = message.adapter
        group.replays = self._config.deterministic
        self._arrivals += 1
        self._groups[group.id] = group
        match message:
            case Embed():
                group.pooling = message.pooling
                self._add_sequence(group, 0, 0, Sampling(), needs_past=False)
            case Add():
                group.stop_tokens = message.stop_tokens
                group.logprobs, group.prompt_logprobs = message.logprobs, message.prompt_logprobs
                room = self._max_model_len - len(message.prompt)
                for choice in message.choices:
                    needs_past = message.grammar is not None or choice.sampling.looks_back
                    max_tokens = min(choice.max_tokens, room)
                    self._add_sequence(group, choice.seed, max_tokens, choice.sampling, needs_past=needs_past)
            case _:
                assert_never(message)
        self.queue.put(group.sequences[0])
        return [sequence.id for sequence in group.sequences]

    def _add_sequence(
        self, group: SequenceGroup, seed: int, max_tokens: int, sampling: Sampling, *, needs_past: bool
    ) -> None:
        state = State.FOLLOWING if group.sequences else State.WAITING
        sequence = Sequence(self._numbered, group, len(group.sequences), seed, max_tokens, sampling, needs_past, state)
        self._numbered += 1
        self._sequences[sequence.id] = sequence
        group.sequences.append(sequence)
        group.alive += 1

    def abort(self, group: int, choices: Collection[int] | None = None) -> None:
        """End these choices of a group, or all of them if `choices` is None; unknown and finished ones are ignored."""
        if found := self._groups.get(group):
            for sequence in found.living():
                if choices is None or sequence.choice in choices:
                    self._end(sequence)

    def abort_batch(self, batch: Batch) -> list[int]:
        """End every group that takes part in a batch that could not be run; return the ids of those that were alive.

        Other groups are not affected: the blocks that a batch computes are published only when it is received.
        """
        flight = self._flights.popleft() if self._flights[0].batch is batch else self._flights.pop()
        groups = {group.id for group, _ in flight.prompts if group.alive}
        groups |= {self._sequences[row.sequence].group.id for row in batch.rows if row.sequence in self._sequences}
        for group in sorted(groups):
            self.abort(group)
        return sorted(groups)

    # One step

    def schedule(self) -> Batch:
        """Choose the next step's work and allocate the blocks that it writes to.

        A batch with chunks or rows counts as in flight from now on; an empty one does not.
        """
        self.queue.steps += 1
        self._make_room()
        self._meet_claim()
        rows = tuple([self._row(sequence) for sequence in self.running if sequence.ready])
        size, prompts = self.pool.block_size, self._prompts()
        budget = self._tokens - len(rows)
        if self._fixed_chunk is None:
            ends = chunking.shared_out(prompts, budget, size)
        else:
            ends = chunking.fixed(prompts, budget, self._fixed_chunk)
        chunks = tuple([batch_entries.chunk(sequence, end, size) for sequence, end in ends])
        copies, latest = self.pool.drain_copies(), self._latest
        kv_spans = continue_kv_spans(latest, rows, size)
        continues = kv_spans is not None and not chunks and not copies
        if kv_spans is None:
            kv_spans = plan_kv_spans(rows, size, gate=self._gate)
        batch = Batch(copies, chunks, rows, kv_spans, number=latest.number + 1, continues=continues)
        if chunks or rows:
            self._give_out(batch)
        return batch

    def _give_out(self, batch: Batch) -> None:
        """Advance all state to where it will be when the batch has run, so that the next batch can follow.

        Prompts move on, groups leave prefill, tokens are in flight. Blocks are published, and results reported, only
        when the batch is received.
        """
        prompts: list[tuple[SequenceGroup, Gathered]] = []
        for chunk in batch.chunks:
            sequence = self._sequences[chunk.sequence]
            sequence.computed += len(chunk.tokens)
            prompts.append((sequence.group, sequence.group.gathered))
            if chunk.last and not chunk.pooling:
                self._leave_prefill(sequence)
        for draw in batch.draws:
            self._sequences[draw.sequence].in_flight += 1
        self._flights.append(StepInFlight(batch, tuple(prompts)))
        self._latest = batch

    def receive(self, batch: Batch, output: StepOutput) -> Outcome:
        """Process the result of the oldest batch in flight: publish its full blocks, end sequences that are done."""
        flight = self._flights.popleft()
        if flight.batch is not batch:
            raise RuntimeError("a batch is received out of turn")
        starts, vectors = self._take_prompts(flight, output)
        for row in batch.rows if self._fixed_chunk is None else ():
            if sequence := self._sequences.get(row.sequence):
                publish(self.pool, [sequence], row.blocks, row.position, row.position + 1, computed_for=sequence.id)
        stuck: dict[int, Stuck] = {}
        for number, why in output.stuck.items():
            if sequence := self._sequences.get(number):
                sequence.in_flight -= 1
                stuck[sequence.group.id] = why
        tokens = [
            self._extend(self._sequences[number], token, output.logprobs.get(number))
            for number, token in output.tokens
            if number in self._sequences
        ]
        self.tokens_drawn += len(tokens)
        return Outcome(tuple(tokens), starts, vectors, stuck)

    def _take_prompts(
        self, flight: StepInFlight, output: StepOutput
    ) -> tuple[tuple[Started, ...], tuple[Embedded, ...]]:
        starts: list[Started] = []
        vectors: list[Embedded] = []
        for chunk, group, gathered in flight.gather(output):
            end = chunk.start + len(chunk.tokens)
            self.prompt_tokens_computed += max(min(end, len(group.prompt)) - chunk.start, 0)
            if self._fixed_chunk is None or len(chunk.tokens) == self._fixed_chunk:
                publish(self.pool, group.living(), chunk.blocks, chunk.start, end, computed_for=chunk.sequence)
            if not chunk.last or not group.alive:
                continue
            if chunk.pooling:
                vectors.append(embedded(group, gathered))
                self._end(group.sequences[0])
            elif not group.started:
                starts.append(started(group, gathered))
                group.started = True
        return tuple(starts), tuple(vectors)

    def _row(self, sequence: Sequence) -> Row:
        index = sequence.position // self.pool.block_size
        if index == len(sequence.blocks):
            sequence.blocks = (*sequence.blocks, *self.pool.take())
        else:
            sequence.blocks = self.pool.own(sequence.blocks, index)
        row = batch_entries.row(sequence, self.pool.block_size)
        sequence.to_replay = max(sequence.to_replay - 1, 0)
        return row

    def _prompts(self) -> Iterator[Sequence]:
        """Yield the prompts in computation, oldest first; then, one by one, those that can be admitted."""
        yield from self._unfinished()
        while admitted := self.queue.admit(self.running):
            self._let_in(admitted)
            yield admitted

    def _unfinished(self) -> list[Sequence]:
        return [one for one in self.running if one.state is State.PREFILL and one.computed < one.prefill_length]

    def _let_in(self, sequence: Sequence) -> None:
        insort(self.running, sequence, key=by_age)
        group = sequence.group
        if group.cached_tokens is None:
            group.cached_tokens = sequence.computed
            self.cache_hits += sequence.computed
            self.cache_misses += len(group.prompt) - sequence.computed

    def _leave_prefill(self, leader: Sequence) -> None:
        leader.move(State.DECODE)
        leader.to_replay = max(leader.length - leader.prefill_length - 1, 0)
        leader.name_blocks(leader.prefill_length // self.pool.block_size, self.pool.block_size)  # once for all
        followers = [sequence for sequence in leader.group.sequences if sequence.state is State.FOLLOWING]
        if leader.group.alone:
            for follower in followers:
                follower.move(State.WAITING)
                self.queue.put(follower)
            return
        self.pool.fork(leader.blocks, len(followers))
        self.forks += len(followers)
        for follower in followers:
            follower.blocks, follower.keys = leader.blocks, leader.keys.copy()
            follower.move(State.DECODE)
            insort(self.running, follower, key=by_age)

    def _extend(self, sequence: Sequence, token: int, logprobs: Logprobs | None) -> TokenDrawn:
        group = sequence.group
        sequence.output.append(token)
        sequence.in_flight -= 1
        finish: Finish | None = None
        if token in group.stop_tokens:
            finish = "stop"
        elif len(sequence.output) >= sequence.max_tokens:
            finish = "length"
        if finish is not None:
            self._end(sequence)
        return TokenDrawn(group.id, sequence.choice, token, finish, logprobs)

    def _end(self, sequence: Sequence) -> None:
        """Remove a sequence. If it is a leader, the first follower takes its place and everything it holds."""
        group, state = sequence.group, sequence.state
        queue = self.queue.waiting if state is State.WAITING else self.running
        heir = next((one for one in group.sequences if one.state is State.FOLLOWING), None)
        if state is State.FOLLOWING:
            pass  # it is in no queue and holds nothing
        elif heir is not None:
            heir.blocks, heir.computed, heir.keys = sequence.blocks, sequence.computed, sequence.keys
            heir.waiting_since = sequence.waiting_since
            heir.move(state)
            queue[queue.index(sequence)] = heir
        else:
            self.pool.release(sequence.blocks)
            queue.remove(sequence)
        sequence.blocks = ()
        sequence.move(State.DONE)
        del self._sequences[sequence.id]
        group.alive -= 1
        if not group.alive:
            del self._groups[group.id]

    # Preemption

    def _make_room(self) -> None:
        """Preempt until every decoding sequence has a block to write to.

        This happens before any block of the step is given out: between the copies of a step no block may be released
        (see BlockPool).
        """
        if len(self.running) <= self.pool.available:
            return  # each sequence takes at most one block: no need to count
        for sequence, _ in giving_way(self.running):
            if blocks_wanted(self.running, self.pool) <= self.pool.available:
                return
            self._preempt(sequence)

    def _meet_claim(self) -> None:
        """Admit one group that has waited long enough beside a wider one, in place of the latter's youngest
        sequences.
        """
        wanted = blocks_wanted(self.running, self.pool) if self.queue.waiting else 0
        if claim := self.queue.claim(self.running, wanted):
            for victim in claim.victims:
                self._preempt(victim)
            self.gave_way += len(claim.victims)
            if self.queue.meet(claim, wanted):
                self._let_in(claim.sequence)

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.pool.release(sequence.blocks)
        sequence.blocks, sequence.computed = (), 0
        if not sequence.output:
            sequence.group.gathered = Gathered()
        sequence.move(State.WAITING)
        self.queue.put(sequence)
        self.preemptions += 1
