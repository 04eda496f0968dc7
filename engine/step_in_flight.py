"""A batch in flight: what is remembered of a step until it is received, and what is reported and published then.

No torch. Before a step is received, nothing that it computes is published: others might build on a step that failed.
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
    """What a step gave, as it is reported in messages; and the groups that could not draw, and why."""

    tokens: tuple[TokenDrawn, ...] = ()
    started: tuple[Started, ...] = ()
    embedded: tuple[Embedded, ...] = ()
    stuck: Mapping[int, Stuck] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepInFlight:
    """A batch that has been scheduled.

    prompts: for each chunk, its group, and where what it returns about the prompt is gathered. A sequence may end, or
    give its blocks back, while one of its steps is in flight. So a chunk's group is found here and not by the chunk's
    sequence, whose place another one may have taken.
    """

    batch: Batch
    prompts: tuple[tuple[SequenceGroup, Gathered], ...]

    def gather(self, output: StepOutput) -> list[tuple[Chunk, SequenceGroup, Gathered]]:
        """Store what the chunks returned about their prompts; return each chunk, its group and all that is gathered."""
        result: list[tuple[Chunk, SequenceGroup, Gathered]] = []
        for chunk, (group, gathered) in zip(self.batch.chunks, self.prompts, strict=True):
            gathered.take(output.prompt_logprobs.get(chunk.sequence, ()), output.pooled.get(chunk.sequence, ()))
            result.append((chunk, group, gathered))
        return result


def publish(
    pool: BlockPool, sequences: Iterable[Sequence], table: BlockTable, start: int, end: int, *, computed_for: int
) -> None:
    """Publish the blocks of a table that became full by computing positions start .. end - 1.

    sequences: all that may hold them. A sequence that has given them back in the meantime is left alone. computed_for:
    the sequence whose tokens they hold. Its siblings share only those of the prompt; a later one in their tables has
    been given back, and taken again for other tokens.
    """
    for index in range(start // pool.block_size, end // pool.block_size):
        for sequence in sequences:
            if sequence.blocks[index : index + 1] != table[index : index + 1]:
                continue
            if sequence.id != computed_for and (index + 1) * pool.block_size > len(sequence.group.prompt):
                continue
            sequence.name_blocks(index + 1, pool.block_size)
            sequence.blocks = pool.publish(sequence.blocks, index, sequence.keys[index])
            if sequence.blocks[index] == table[index]:
                break  # it is the block under this key, for the other sequences too


def started(group: SequenceGroup, gathered: Gathered) -> Started:
    """Return the message that a group's prompt is computed, with what was asked for about it."""
    logprobs = None if group.prompt_logprobs is None else (None, *gathered.prompt_logprobs)
    return Started(group.id, group.cached_tokens or 0, logprobs)


def embedded(group: SequenceGroup, gathered: Gathered) -> Embedded:
    """Return the answer to an Embed whose prompt is computed."""
    count = len(group.prompt) if group.pooling == "mean" else 1
    return Embedded(group.id, tuple([value / count for value in gathered.hidden]))
