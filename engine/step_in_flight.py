"""A batch under way: what is remembered of a step until it is received, and what becomes known of its blocks then.

No torch. Before it is received nothing that a step computes is known to others: they might build on what has failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from engine.batch import Batch, Chunk, StepOutput, Stuck
from engine.blocks import BlockPool, BlockTable
from engine.messages import Embedded, Started, TokenDrawn
from engine.sequence import Gathered, Sequence, SequenceGroup


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step gave, as the messages tell it; and the groups that could not draw, and why."""

    tokens: tuple[TokenDrawn, ...] = ()
    started: tuple[Started, ...] = ()
    embedded: tuple[Embedded, ...] = ()
    stuck: Mapping[int, Stuck] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepInFlight:
    """A batch that has been given out. prompts: whose each chunk is, and where what it tells of the prompt goes.

    A sequence may end, or give its blocks back, while a step of its is under way; the group of a chunk is told by
    this, not by the chunk's sequence, as another one may have taken its place.
    """

    batch: Batch
    prompts: tuple[tuple[SequenceGroup, Gathered], ...]

    def gather(self, output: StepOutput) -> list[tuple[Chunk, SequenceGroup, Gathered]]:
        """Keep what the chunks told of their prompts; gives each chunk with its group and all that is gathered."""
        told: list[tuple[Chunk, SequenceGroup, Gathered]] = []
        for chunk, (group, gathered) in zip(self.batch.chunks, self.prompts, strict=True):
            gathered.take(output.prompt_logprobs.get(chunk.sequence, ()), output.pooled.get(chunk.sequence, ()))
            told.append((chunk, group, gathered))
        return told


def publish(pool: BlockPool, sequences: Iterable[Sequence], table: BlockTable, start: int, end: int) -> None:
    """Make the blocks of a table known that became full by computing positions start .. end - 1.

    sequences: all who may hold them; who has given them back meanwhile does not, and is left alone.
    """
    for index in range(start // pool.block_size, end // pool.block_size):
        for sequence in sequences:
            if sequence.blocks[index : index + 1] != table[index : index + 1]:
                continue
            sequence.name_blocks(index + 1, pool.block_size)
            sequence.blocks = pool.publish(sequence.blocks, index, sequence.keys[index])
            if sequence.blocks[index] == table[index]:
                break  # it is the one that is known, for the others too
