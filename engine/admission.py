"""Who may come in: what can never run here, when the queue is full, which waiting sequence goes next, and who
gives way to it.

Counts only; no tensors, no clock, no randomness. The scheduler owns both objects.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from itertools import groupby, islice
from operator import attrgetter

from engine.blocks import BlockPool, BlockTable
from engine.config import EngineConfig
from engine.messages import Add, Embed, Ready
from engine.sequence import Sequence, SequenceGroup, State

by_age = attrgetter("order")
_LOOK_AHEAD = 64  # waiting groups that are looked at per admission
PATIENCE = 16
"""Steps that a group waits for places to come free before it claims them from a wider one."""


def blocks_wanted(running: Iterable[Sequence], pool: BlockPool) -> int:
    """Blocks that the rows of the next step will take: new ones, and copies of blocks that others still hold."""
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
    """Running sequences in the order in which they give way, each with how many its group runs until then.

    The youngest of the widest group goes first, so that a group keeps its oldest while another has two, and a
    single one is not undone by the growth of sixty siblings. Where groups are equally wide the youngest goes.
    """
    groups: dict[int, list[Sequence]] = {}
    for sequence in running:
        groups.setdefault(sequence.group.number, []).append(sequence)
    heap = [(-len(siblings), -number) for number, siblings in groups.items()]
    heapify(heap)
    while heap:
        width, number = heap[0]
        yield groups[-number].pop(), -width
        if width < -1:
            heapreplace(heap, (width + 1, number))
        else:
            heappop(heap)


@dataclass(frozen=True, slots=True)
class Limits:
    """What this engine takes at all, and how many sequences it takes at once."""

    config: EngineConfig
    ready: Ready

    def refusal(self, message: Add | Embed) -> str | None:
        """Why a group can never run here, as a sentence for the client; None if it can."""
        new = [choice.max_tokens for choice in message.choices] if isinstance(message, Add) else [0]
        prompt, n, size, most = len(message.prompt), len(new), self.ready.block_size, self.ready.max_model_len
        least = 1 if isinstance(message, Add) else 0
        if prompt == 0 or n < 1 or min(new) < least:
            return "a request needs a prompt of at least one token, one choice and one new token"
        if message.adapter is not None and message.adapter not in dict(self.config.adapters):
            return f"there is no adapter '{message.adapter}'"
        if n > self.config.max_sequences:
            return f"n={n} is more than the {self.config.max_sequences} sequences that this engine runs at once"
        if prompt + least > most:
            return f"the prompt has {prompt} tokens; the maximum is {most}{' including the answer' * least}"
        # All n leave prefill together, each with a block to write to; later the oldest goes on alone if it must.
        blocks = max(prompt // size + n, -(-min(prompt + max(new), most) // size))
        if blocks > self.ready.blocks:
            return f"the request needs {blocks} blocks of {size} tokens of KV cache; there are {self.ready.blocks}"
        return None

    def crowd(self, message: Add | Embed, living: int) -> str | None:
        """Why a group cannot queue behind so many living sequences; None if it can, as it always can behind none."""
        n = len(message.choices) if isinstance(message, Add) else 1
        if living + n > self.config.room:
            return f"{living} sequences are already running or waiting; there is no room for {n} more now"
        return None


class Queue:
    """The sequences that wait, oldest first, and the rules by which they are let in.

    steps: begun so far. unit: of the blocks that are known, a multiple of it is used.
    """

    def __init__(self, pool: BlockPool, max_sequences: int, unit: int = 1) -> None:
        self.waiting: list[Sequence] = []
        self.steps = 0
        self._pool = pool
        self._max_sequences = max_sequences
        self._unit = unit

    def put(self, sequence: Sequence) -> None:
        """Let a sequence wait, at its place by age."""
        sequence.since = self.steps
        insort(self.waiting, sequence, key=by_age)

    def admit(self, running: list[Sequence]) -> Sequence | None:
        """Take out the next sequence that can go beside the running ones, with its blocks, and start its prefill.

        The oldest goes first. While it does not fit, younger groups may overtake it, but all in all with no more
        sequences than it has itself: a narrow request slips past a wide one, and the wide one's turn
        comes. Who waits for blocks that another prompt is just about to give takes nobody's place. One
        further block for each sequence that runs stays untouched: who is let in too early is preempted a few
        steps later and computed twice.
        """
        if not self.waiting:
            return None
        slots = sum([sequence.width for sequence in running])
        passed: list[SequenceGroup] = []
        for sequence in islice(self._heads(), _LOOK_AHEAD):
            width = sequence.width
            if any(group.overtaken + width > len(group.sequences) for group in passed):
                return None
            if slots + width <= min(self._max_sequences, self._pool.available):  # else there is nothing to look for
                known = self._known(sequence)
                if self._is_coming(sequence, len(known), running):
                    continue
                if self._blocks(sequence, width, known) + slots <= self._pool.available:
                    for group in passed:
                        group.overtaken += width
                    self._start(sequence, known)
                    return sequence
            passed.append(sequence.group)
        return None

    def claim(self, running: list[Sequence], wanted: int) -> tuple[Sequence, list[Sequence]] | None:
        """The next sequence that has a claim to run, and those that must give way to it; None if there is none.

        A claim has who has waited for PATIENCE steps while nothing of its group runs, and another group runs more
        sequences than it would. Such a group gives places up, its oldest sequence never; and since
        something of it runs, it claims nothing back: what it gave up waits for its turn. So a request for one choice
        waits for PATIENCE steps, and a step for each claim before its own, however wide the others are.
        The oldest claim that can be met goes first. wanted: blocks that the running rows take in this step.
        """
        latest = self.steps - PATIENCE
        if all(sequence.since > latest for sequence in self.waiting):
            return None
        victims = list(giving_way(running))
        freed = self._freed([victim for victim, _ in victims])
        present = {sequence.group.number for sequence in running}
        slots = sum([sequence.width for sequence in running])
        for sequence in self._heads():
            width = sequence.width
            most = sum([share > width for _, share in victims])
            if not most or sequence.since > latest or sequence.group.number in present:
                continue
            known = self._known(sequence)
            if self._is_coming(sequence, len(known), running):
                continue
            blocks = self._blocks(sequence, width, known) + wanted - self._pool.available
            least = max(slots + width - self._max_sequences, bisect_left(freed, blocks), 0)
            if least <= most:
                return sequence, [victim for victim, _ in victims[:least]]
        return None

    def meet(self, sequence: Sequence, wanted: int) -> bool:
        """Start the prefill of a sequence whose claim was found; false if its blocks are not there after all."""
        # They are not where what it shares with a sequence that gave way was held by nobody else.
        known = self._known(sequence)
        if self._blocks(sequence, sequence.width, known) + wanted > self._pool.available:
            return False
        self._start(sequence, known)
        return True

    def _freed(self, victims: Iterable[Sequence]) -> list[int]:
        """Blocks that become available when the first 0, 1, 2 .. of these give up theirs."""
        left: dict[int, int] = {}
        freed = [0]
        for victim in victims:
            for block in victim.blocks:
                left[block] = left.get(block, self._pool.holders(block)) - 1
            freed.append(freed[-1] + sum([not left[block] for block in victim.blocks]))
        return freed

    def _heads(self) -> Iterator[Sequence]:
        """The oldest waiting sequence of each group, but for those that gave way in this very step.

        A token of theirs may be under way, and what they compute again ends with it: longer, where the step behind it
        could not be run.
        """
        heads = (next(siblings) for _, siblings in groupby(self.waiting, key=lambda sequence: sequence.group.number))
        return (head for head in heads if head.since < self.steps and not head.ahead)

    def _known(self, sequence: Sequence) -> BlockTable:
        """The blocks that need not be computed. The last token always is: somebody draws from it."""
        most = (sequence.prefill - 1) // self._pool.block_size
        sequence.name_blocks(most, self._pool.block_size)
        known = self._pool.find(sequence.keys, most) if sequence.group.skips_known_blocks else ()
        return known[: len(known) // self._unit * self._unit]

    def _is_coming(self, sequence: Sequence, known: int, running: Iterable[Sequence]) -> bool:
        """Whether the next blocks that a sequence lacks are some that a running prompt is going to compute."""
        last = known + self._unit - 1
        if last >= (sequence.prefill - 1) // self._pool.block_size or not sequence.group.skips_known_blocks:
            return False
        key = sequence.keys[last]
        # A prompt whose last chunk is under way is decoding already, and its tokens are being drawn.
        prompts = [one for one in running if one.state is State.PREFILL or one.ahead]
        return any(key in one.keys[last : last + 1] for one in prompts)

    def _blocks(self, sequence: Sequence, width: int, known: BlockTable) -> int:
        """Available blocks for all its tokens, and for a first new one of each sequence that will leave prefill."""
        held = sum([self._pool.holders(block) > 0 for block in known])
        return sequence.length // self._pool.block_size + width - held

    def _start(self, sequence: Sequence, known: BlockTable) -> None:
        self.waiting.remove(sequence)
        size = self._pool.block_size
        held = self._pool.fork(known)
        sequence.blocks = (*held, *self._pool.take(-(-sequence.length // size) - len(held)))
        sequence.computed = len(held) * size
        sequence.move(State.PREFILL)
