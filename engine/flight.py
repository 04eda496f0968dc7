"""A batch under way: what is remembered of a step from its schedule until what it gave is known. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.batch import Batch, Chunk, StepOutput, Stuck
from engine.messages import Embedded, Started, TokenDrawn
from engine.sequence import Gathered, SequenceGroup


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step gave, as the messages tell it; and the groups that could not draw, and why."""

    tokens: tuple[TokenDrawn, ...] = ()
    started: tuple[Started, ...] = ()
    embedded: tuple[Embedded, ...] = ()
    stuck: Mapping[int, Stuck] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Flight:
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
