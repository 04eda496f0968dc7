"""Admission: which waiting sequence is admitted next, and which running sequences are preempted for it.

Counts only; no tensors, no clock, no randomness. The scheduler owns the queue.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heapreplace
from itertools import groupby, islice, takewhile
from operator import attrgetter
from typing import NamedTuple

from engine.blocks import BlockPool
from engine.sequence import Sequence, SequenceGroup, State

by_age = attrgetter("age")
_LOOK_AHEAD = 64  # waiting groups that are considered per admission or claim
_LOOK_PAST = 2048  # waiting groups that are gone through for these; one that waits for what another does costs little
_AGAIN = 4  # blocks that are computed again, per block that each running sequence can still take
PATIENCE = 16
"""Steps that a group waits for slots to become free before it claims them from a wider group."""
LONG_PATIENCE = 512
"""Steps after which a group that cannot have a slot for each of its choices claims one for its leader alone."""


def blocks_wanted(running: Iterable[Sequence], pool: BlockPool) -> int:
    """Count the blocks that the next step's rows will take: new ones, and copies of blocks that others still hold."""
    wanted = 0
    left: dict[int, int] = {}
    for sequence in running:
        if sequence.ready:
            index = sequence.position // pool.block_size
            if index == len(sequence.blocks):
                wanted += 1
                continue
            block = sequence.blocks[index]
            holders = left.get(block, pool.holders(block))
            if holders > 1:
                wanted += 1
                left[block] = holders - 1
    return wanted


def giving_way(running: Iterable[Sequence]) -> Iterator[tuple[Sequence, int]]:
    """Yield running sequences in the order of preemption, each with how many its group runs until then.

    The youngest of the widest group goes first. So a group keeps its oldest sequence while another group has two, and a
    single sequence is not preempted because sixty siblings grow. Of equally wide groups, the youngest goes first.
    """
    groups: dict[int, list[Sequence]] = {}
    for sequence in running:
        groups.setdefault(sequence.group.arrival, []).append(sequence)
    heap = [(-len(siblings), -arrival) for arrival, siblings in groups.items()]
    heapify(heap)
    while heap:
        width, arrival = heap[0]
        yield groups[-arrival].pop(), -width
        if width < -1:
            heapreplace(heap, (width + 1, arrival))
        else:
            heappop(heap)


def _lacks(sequence: Sequence, awaited: Iterable[tuple[int, bytes]]) -> bool:
    """Whether a sequence waits for one of these blocks, given as places and keys; False if its own have no keys yet."""
    for place, key in awaited:
        if place < len(sequence.keys) and sequence.keys[place] == key:
            return sequence.group.skips_known_blocks
    return False


def _prompts(running: Iterable[Sequence]) -> list[Sequence]:
    """Return the sequences whose prompt is being computed.

    One whose last chunk is in flight is in DECODE already, with tokens in flight.
    """
    return [one for one in running if one.state is State.PREFILL or one.in_flight]


class Claim(NamedTuple):
    """A waiting sequence that may take others' place. width: how many slots it takes. victims: to be preempted."""

    sequence: Sequence
    width: int
    victims: list[Sequence]


class Queue:
    """The waiting sequences, oldest first, and the rules by which they are admitted.

    steps: how many have begun so far. unit: known blocks are used in multiples of so many only, which in deterministic
    mode are a whole chunk.
    """

    def __init__(self, pool: BlockPool, max_sequences: int, unit: int = 1) -> None:
        self.waiting: list[Sequence] = []
        self.steps = 0
        self._pool = pool
        self._max_sequences = max_sequences
        self._unit = unit

    def put(self, sequence: Sequence) -> None:
        """Add a waiting sequence, at its place by age."""
        sequence.waiting_since = self.steps
        insort(self.waiting, sequence, key=by_age)

    def admit(self, running: list[Sequence]) -> Sequence | None:
        """Take out the next sequence that fits beside the running ones, give it its blocks, and start its prefill.

        The oldest goes first. While it does not fit, younger groups may overtake it, but in total with no more
        sequences than it has itself: narrow requests can pass a wide one, but the wide one still gets its turn. A
        sequence that waits for blocks which another prompt is about to compute does not count as overtaken, and those
        that wait for the same blocks count once among the groups that are considered. Additional blocks for each
        running sequence are left untouched (`_reserve`): a sequence that is admitted too early is preempted a few steps
        later and computed twice.
        """
        if not self.waiting:
            return None
        slots = sum([sequence.width for sequence in running])
        most = min(self._max_sequences, self._pool.available) - slots  # a wider sequence cannot fit in any case
        passed: list[SequenceGroup] = []
        room = self._max_sequences  # how many sequences may overtake those
        awaited: set[tuple[int, bytes]] = set()
        prompts = _prompts(running)
        considered = 0
        for sequence in islice(self._heads(), _LOOK_PAST):
            width = sequence.width
            if width > room:
                return None
            if width <= most and _lacks(sequence, awaited):
                continue
            if considered == _LOOK_AHEAD:
                return None
            considered += 1
            if width <= most:
                known = self._known(sequence)
                if coming := self._coming(sequence, known, prompts):
                    awaited.add(coming)
                    continue
                reserve = self._reserve(sequence, known) * slots
                if self._blocks(sequence, width, known) + reserve <= self._pool.available:
                    for group in passed:
                        group.overtaken += width
                    self._start(sequence, known)
                    return sequence
            passed.append(sequence.group)
            room = min(room, len(sequence.group.sequences) - sequence.group.overtaken)
        return None

    def claim(self, running: list[Sequence], wanted: int) -> Claim | None:
        """Return the next claim to run that can be met; None if there is none.

        A sequence has a claim if it has waited for PATIENCE steps, no sequence of its group runs, and another group
        runs more sequences than it would. Such a wider group gives slots up, but never its oldest sequence. Since that
        one still runs, the group has no claim to get slots back: its preempted sequences wait for their turn. So a
        request for one choice waits for PATIENCE steps, and one step for each claim before its own, however wide the
        other requests are. Of the _LOOK_AHEAD oldest claims, the first that can be met goes first. wanted: blocks that
        the running rows take in this step.

        A wide group claims nothing from one that is as wide, and while that one lives, narrow ones claim its slots. So
        after LONG_PATIENCE steps, if it still cannot have a slot for each choice, it claims one for its leader alone.
        """
        latest = self.steps - PATIENCE
        if all(sequence.waiting_since > latest for sequence in self.waiting):
            return None
        victims = list(takewhile(lambda victim: victim[1] > 1, giving_way(running)))
        if not victims:
            return None
        shares = [-share for _, share in victims]  # ascending, because the widest group gives way first
        freed: list[int] | None = None  # counted for the first claim that has victims: it looks at all their blocks
        present = {sequence.group.arrival for sequence in running}
        slots = sum([sequence.width for sequence in running])
        prompts = _prompts(running)
        considered = 0
        for sequence in self._heads():
            if sequence.waiting_since > latest or sequence.group.arrival in present:
                continue
            overdue = sequence.width > 1 and sequence.waiting_since <= self.steps - LONG_PATIENCE
            widths = (sequence.width, 1) if overdue else (sequence.width,)
            if shares[0] >= -widths[-1]:
                continue  # no group runs more than that
            if considered == _LOOK_AHEAD:
                return None
            considered += 1
            known = self._known(sequence)
            if self._coming(sequence, known, prompts):
                continue
            freed = freed or self._freed([victim for victim, _ in victims])
            for width in widths:
                most = bisect_left(shares, -width)
                blocks = self._blocks(sequence, width, known) + wanted - self._pool.available
                least = max(slots + width - self._max_sequences, bisect_left(freed, blocks), 0)
                if most and least <= most:
                    return Claim(sequence, width, [victim for victim, _ in victims[:least]])
        return None

    def meet(self, claim: Claim, wanted: int) -> bool:
        """Start the prefill of a claim whose victims were preempted; return False if there are too few blocks after
        all, as blocks that it shares with a victim were held by that one alone. wanted: as for `claim`.
        """
        sequence = claim.sequence
        known = self._known(sequence)
        if self._blocks(sequence, claim.width, known) + wanted > self._pool.available:
            return False
        if claim.width < sequence.width:
            sequence.group.alone = True
        self._start(sequence, known)
        return True

    def _freed(self, victims: Iterable[Sequence]) -> list[int]:
        """Return how many blocks become available if the first 0, 1, 2 ... of the victims release theirs."""
        left: dict[int, int] = {}
        freed = [0]
        for victim in victims:
            for block in victim.blocks:
                left[block] = left.get(block, self._pool.holders(block)) - 1
            freed.append(freed[-1] + sum([not left[block] for block in victim.blocks]))
        return freed

    def _heads(self) -> Iterator[Sequence]:
        """Return the oldest waiting sequence of each group, without those that cannot be admitted in this step.

        These are the sequences that were preempted in this very step, and those that still have a token in flight: what
        they compute again includes that token. The latter lasts longer if the step behind the one in flight could not
        be run.
        """
        heads = (next(siblings) for _, siblings in groupby(self.waiting, key=lambda sequence: sequence.group.arrival))
        return (head for head in heads if head.waiting_since < self.steps and not head.in_flight)

    def _known(self, sequence: Sequence) -> int:
        """Return how many of its first blocks need not be computed; this gives its blocks their keys.

        The last token always is computed, because its logits are drawn from.
        """
        most = (sequence.prefill_length - 1) // self._pool.block_size
        sequence.name_blocks(most, self._pool.block_size)
        known = self._pool.count_known(sequence.keys, most) if sequence.group.skips_known_blocks else 0
        return known // self._unit * self._unit

    def _coming(self, sequence: Sequence, known: int, prompts: Iterable[Sequence]) -> tuple[int, bytes] | None:
        """Return place and key of the next block that a sequence lacks (the last one of the next unit), if a running
        prompt is going to compute it.
        """
        last = known + self._unit - 1
        if last >= (sequence.prefill_length - 1) // self._pool.block_size or not sequence.group.skips_known_blocks:
            return None
        key = sequence.keys[last]
        return (last, key) if any(key in one.keys[last : last + 1] for one in prompts) else None

    def _blocks(self, sequence: Sequence, width: int, known: int) -> int:
        """Return how many available blocks it needs: for all its tokens, and a new one for each sequence that will
        leave prefill, which an Embed's does not.
        """
        held = self._pool.count_held(sequence.keys, known)
        if sequence.group.pooling is not None:
            return -(-sequence.length // self._pool.block_size) - held
        return sequence.length // self._pool.block_size + width - held

    def _reserve(self, sequence: Sequence, known: int) -> int:
        """Return how many blocks are left untouched for each running sequence: one, or for a preempted sequence a
        quarter of the blocks that it computes again.

        So it runs for a number of steps that is worth the computation, before blocks run out again and the youngest
        sequence, which often is this one, is preempted.
        """
        if not sequence.output:
            return 1
        return max((sequence.length // self._pool.block_size - known) // _AGAIN, 1)

    def _start(self, sequence: Sequence, known: int) -> None:
        self.waiting.remove(sequence)
        size = self._pool.block_size
        held = self._pool.fork(self._pool.find(sequence.keys, known))
        sequence.blocks = (*held, *self._pool.take(-(-sequence.length // size) - len(held)))
        sequence.computed = len(held) * size
        sequence.move(State.PREFILL)
