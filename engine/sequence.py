"""Sequences, their groups, and their states, which are data: all transitions stand in one table here.

One choice is one sequence; one request is one group. A group prefills once: its leader carries the
prompt's blocks, the followers wait without any and fork from the leader when the prompt is computed.

    WAITING    in the queue, holding nothing: a group's leader, or a preempted sequence
    FOLLOWING  waits for its group's leader to compute the prompt; in no queue, holding nothing
    PREFILL    in the running list, its known tokens being computed chunk by chunk
    DECODE     in the running list, one new token a step
    DONE       ended or aborted; holds nothing and never comes back
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Literal

from engine.messages import Sampling

Finish = Literal["stop", "length"]


class State(Enum):
    """Where a sequence is in its life."""

    WAITING = auto()
    FOLLOWING = auto()
    PREFILL = auto()
    DECODE = auto()
    DONE = auto()


TRANSITIONS: dict[State, frozenset[State]] = {
    State.WAITING: frozenset({State.PREFILL, State.DONE}),
    # To WAITING or PREFILL when the leader is aborted and this one takes its place.
    State.FOLLOWING: frozenset({State.DECODE, State.WAITING, State.PREFILL, State.DONE}),
    State.PREFILL: frozenset({State.DECODE, State.WAITING, State.DONE}),  # to WAITING by preemption
    State.DECODE: frozenset({State.WAITING, State.DONE}),
    State.DONE: frozenset(),
}


@dataclass(slots=True, eq=False)
class SequenceGroup:
    """One request: what its sequences have in common.

    number: its place in the order of arrival. overtaken: sequences that were admitted past it while it waited.
    """

    id: int
    number: int
    prompt: tuple[int, ...]
    stop_tokens: frozenset[int]
    sequences: list[Sequence] = field(default_factory=list)
    overtaken: int = 0

    def living(self) -> list[Sequence]:
        """The sequences that are not done, in order of choice."""
        return [sequence for sequence in self.sequences if sequence.state is not State.DONE]


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice. Changed by the scheduler alone.

    id: unique in this engine. seed: its own key, int64. limit: its new tokens at most (what was asked for, or
    what the model's length leaves). output: its tokens so far. blocks: its block table, replaced and never
    changed in place, so that siblings share one tuple until they part. computed: how many of its tokens have
    keys and values, while in PREFILL.
    """

    id: int
    group: SequenceGroup
    choice: int
    seed: int
    limit: int
    sampling: Sampling
    state: State
    output: list[int] = field(default_factory=list)
    blocks: tuple[int, ...] = ()
    computed: int = 0

    @property
    def order(self) -> tuple[int, int]:
        """Oldest first: by arrival of the group, then by choice."""
        return self.group.number, self.choice

    @property
    def length(self) -> int:
        """Tokens of prompt and output; the newest has no key and value yet while in DECODE."""
        return len(self.group.prompt) + len(self.output)

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt and output."""
        return (*self.group.prompt, *self.output) if self.output else self.group.prompt

    def move(self, state: State) -> None:
        """Change state along TRANSITIONS; RuntimeError for any other change, which is a bug of the scheduler."""
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"sequence {self.id} cannot go from {self.state.name} to {state.name}")
        self.state = state
