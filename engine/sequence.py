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

from engine.messages import Logprobs, Sampling

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
    """One request: what its sequences have in common; the fields of its Add or Embed are explained there.

    number: its place in the order of arrival. overtaken: sequences that were admitted past it while it waited.
    scores: of the prompt's tokens from the second on, as far as they are computed, where they are asked for.
    hidden: the sum of the hidden states so far, where their mean is asked for. cached_tokens: prompt tokens that were
    there when it was first admitted; None before. started: its first tokens are drawn.
    """

    id: int
    number: int
    prompt: tuple[int, ...]
    stop_tokens: frozenset[int] = frozenset()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    salt: str = ""
    adapter: str | None = None
    pooling: Literal["mean", "last"] | None = None
    sequences: list[Sequence] = field(default_factory=list)
    overtaken: int = 0
    scores: list[Logprobs] = field(default_factory=list)
    hidden: list[float] = field(default_factory=list)
    cached_tokens: int | None = None
    started: bool = False

    @property
    def scoring(self) -> bool:
        """Whether its prompt's log probabilities are still to be computed."""
        return self.prompt_logprobs is not None and not self.started

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
