"""Sequences, their groups, and their states, which are data: all transitions stand in one table here.

One choice is one sequence; one request is one group. A group prefills once: its leader carries the
prompt's blocks, the followers wait without any and fork from the leader when the prompt is computed. An Embed is a
group of one sequence, which ends with its prompt.

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

from engine import prefix
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
class Gathered:
    """What the chunks of a prompt tell, besides its keys and values, each after those before it.

    scores: of the prompt's tokens from the second on, as far as they are computed, where they are asked for.
    hidden: the sum of the hidden states so far, where they are.
    """

    scores: list[Logprobs] = field(default_factory=list)
    hidden: tuple[float, ...] = ()

    def take(self, scores: tuple[Logprobs, ...], hidden: tuple[float, ...]) -> None:
        """Add what the next chunk has told."""
        self.scores += scores
        if hidden:
            self.hidden = tuple([a + b for a, b in zip(self.hidden, hidden, strict=True)]) if self.hidden else hidden


@dataclass(slots=True, eq=False)
class SequenceGroup:
    """One request: what its sequences have in common; the fields of its Add or Embed are explained there.

    number: its place in the order of arrival. root: what the keys of its blocks hang on. alive: how many of its
    sequences are not done. overtaken: sequences that were admitted past it while it waited. cached_tokens: prompt
    tokens that were there when it was first admitted; None before. started: its first tokens are drawn. gathered: what
    its prompt has told; a new one when the prompt is computed again, which what is under way does not reach. replays:
    what a sequence of it has drawn is, after preemption, not computed in chunks but run again as it ran first, a row
    at a time (deterministic mode).
    """

    id: int
    number: int
    prompt: tuple[int, ...]
    root: bytes
    stop_tokens: frozenset[int] = frozenset()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    adapter: str | None = None
    pooling: Literal["mean", "last"] | None = None
    sequences: list[Sequence] = field(default_factory=list)
    alive: int = 0
    overtaken: int = 0
    cached_tokens: int | None = None
    started: bool = False
    gathered: Gathered = field(default_factory=Gathered)
    replays: bool = False

    @property
    def scoring(self) -> bool:
        """Whether its prompt's log probabilities are still to be computed."""
        return self.prompt_logprobs is not None and not self.started

    @property
    def skips_known_blocks(self) -> bool:
        """Whether it may begin behind the blocks that are known: unless every position has something to tell."""
        return not self.scoring and self.pooling != "mean"

    def living(self) -> list[Sequence]:
        """The sequences that are not done, in order of choice."""
        return [sequence for sequence in self.sequences if sequence.state is not State.DONE]


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice. Changed by the scheduler alone.

    id: unique in this engine. seed: its own key, int64. limit: its new tokens at most (what was asked for, or
    what the model's length leaves). needs_past: none of its tokens can be drawn before the one before it is known here.
    since: the step in which it began to wait, while WAITING. output: its tokens so far. ahead: how many more the
    steps under way draw. blocks: its block table, replaced and never changed in place, so that siblings share one
    tuple until they part. computed: how many of its tokens have keys and values, or will when the steps under way have
    run, while in PREFILL. keys: of its first full blocks, as far as they were needed. replay: how many of its drawn
    tokens run again before the newest, while DECODE.
    """

    id: int
    group: SequenceGroup
    choice: int
    seed: int
    limit: int
    sampling: Sampling
    needs_past: bool
    state: State
    since: int = 0
    output: list[int] = field(default_factory=list)
    ahead: int = 0
    blocks: tuple[int, ...] = ()
    computed: int = 0
    keys: list[bytes] = field(default_factory=list)
    replay: int = 0

    @property
    def order(self) -> tuple[int, int]:
        """Oldest first: by arrival of the group, then by choice."""
        return self.group.number, self.choice

    @property
    def length(self) -> int:
        """Tokens of prompt and output that are known; the newest has no key and value yet while in DECODE."""
        return len(self.group.prompt) + len(self.output)

    @property
    def prefill(self) -> int:
        """How many of its tokens are computed in chunks."""
        return len(self.group.prompt) if self.group.replays else self.length

    @property
    def position(self) -> int:
        """Where the token stands that its next row runs, while DECODE."""
        return self.length - 1 + self.ahead - self.replay

    @property
    def ending(self) -> bool:
        """Whether the newest token under way is its last for certain."""
        return len(self.output) + self.ahead >= self.limit

    @property
    def ready(self) -> bool:
        """Whether a row of it can run now, be its newest token known or not."""
        return self.state is State.DECODE and not (self.ahead and (self.needs_past or self.ending))

    @property
    def hindered(self) -> bool:
        """Whether a row of it could run now if its token under way were known."""
        return self.state is State.DECODE and self.needs_past and self.ahead > 0 and not self.ending

    @property
    def width(self) -> int:
        """Sequences that run, or will once it leaves prefill: all living siblings of a group's leader."""
        return 1 if self.output or self.ahead else self.group.alive

    def span(self, start: int, end: int) -> tuple[int, ...]:
        """Its tokens at positions start .. end - 1, of prompt and output."""
        prompt = len(self.group.prompt)
        return (*self.group.prompt[start:end], *self.output[max(start - prompt, 0) : max(end - prompt, 0)])

    def name_blocks(self, count: int, block_size: int) -> None:
        """Have the keys of its first `count` blocks, all of whose tokens must be known."""
        if (known := len(self.keys)) < count:
            before = self.keys[-1] if self.keys else self.group.root
            self.keys += prefix.chain(before, self.span(known * block_size, count * block_size), block_size)

    def move(self, state: State) -> None:
        """Change state along TRANSITIONS; RuntimeError for any other change, which is a bug of the scheduler."""
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"sequence {self.id} cannot go from {self.state.name} to {state.name}")
        self.state = state
