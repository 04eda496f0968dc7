"""Sequences, their groups, and their states. All state transitions are in one table here.

One choice is one sequence; one request is one group. A group's prompt is prefilled once: its leader holds the prompt's
blocks, and the followers wait without blocks and fork from the leader when the prompt is computed. An Embed is a group
of one sequence, which ends with its prompt.

    WAITING    in the queue, holding nothing: a group's leader, or a preempted sequence
    FOLLOWING  waits for its group's leader to compute the prompt; in no queue, holding nothing
    PREFILL    in the running list; its known tokens are computed chunk by chunk
    DECODE     in the running list; one new token per step that runs it
    DONE       ended or aborted; holds nothing and never runs again
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Literal

from engine import prefix
from engine.messages import Logprobs, Sampling

Finish = Literal["stop", "length"]


class State(Enum):
    """The state of a sequence; see the module's docstring."""

    WAITING = auto()
    FOLLOWING = auto()
    PREFILL = auto()
    DECODE = auto()
    DONE = auto()


TRANSITIONS: dict[State, frozenset[State]] = {
    State.WAITING: frozenset({State.PREFILL, State.DONE}),
    # To WAITING or PREFILL if the leader ends and this one takes its place; to WAITING, too, if the leader ran alone.
    State.FOLLOWING: frozenset({State.DECODE, State.WAITING, State.PREFILL, State.DONE}),
    State.PREFILL: frozenset({State.DECODE, State.WAITING, State.DONE}),  # to WAITING by preemption
    State.DECODE: frozenset({State.WAITING, State.DONE}),
    State.DONE: frozenset(),
}


@dataclass(slots=True, eq=False)
class Gathered:
    """What the chunks of a prompt return besides keys and values, collected in the order of the chunks.

    prompt_logprobs: those of the tokens computed so far, from the second token on, if the request asks for them.
    hidden: the sum of the hidden states so far, if it asks for those.
    """

    prompt_logprobs: list[Logprobs] = field(default_factory=list)
    hidden: tuple[float, ...] = ()

    def take(self, prompt_logprobs: tuple[Logprobs, ...], hidden: tuple[float, ...]) -> None:
        """Add what the next chunk returned."""
        self.prompt_logprobs += prompt_logprobs
        if hidden:
            self.hidden = tuple([a + b for a, b in zip(self.hidden, hidden, strict=True)]) if self.hidden else hidden


@dataclass(slots=True, eq=False)
class SequenceGroup:
    """One request: what its sequences have in common. The fields of its Add or Embed are explained there."""

    id: int
    arrival: int
    """Its place in the order of arrival."""
    prompt: tuple[int, ...]
    root: bytes
    """The key that the chain of its blocks' keys begins with."""
    stop_tokens: frozenset[int] = frozenset()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    adapter: str | None = None
    pooling: Literal["mean", "last"] | None = None
    sequences: list[Sequence] = field(default_factory=list)
    alive: int = 0
    """How many of its sequences are not done."""
    overtaken: int = 0
    """How many sequences were admitted before it while it waited."""
    alone: bool = False
    """Whether its leader runs without the others, which do not fork when the prompt is computed, but wait for slots."""
    cached_tokens: int | None = None
    """Prompt tokens that were found computed when it was first admitted; None before."""
    started: bool = False
    """Whether its first tokens have been drawn."""
    gathered: Gathered = field(default_factory=Gathered)
    """What its prompt has returned; a new object if the prompt is computed again, so that steps in flight do not add to
    it.
    """
    replays: bool = False
    """In deterministic mode, the drawn tokens of a preempted sequence are not recomputed in chunks but run again as
    they ran first, one row at a time.
    """

    @property
    def needs_prompt_logprobs(self) -> bool:
        """Whether its prompt's log probabilities are still to be computed."""
        return self.prompt_logprobs is not None and not self.started

    @property
    def skips_known_blocks(self) -> bool:
        """Whether it may begin behind computed blocks: not if every position of the prompt has to return something."""
        return not self.needs_prompt_logprobs and self.pooling != "mean"

    def living(self) -> list[Sequence]:
        """Return the sequences that are not done, in order of choice."""
        return [sequence for sequence in self.sequences if sequence.state is not State.DONE]


@dataclass(slots=True, eq=False)
class Sequence:
    """One choice. Only the scheduler changes it."""

    id: int
    """Unique in this engine."""
    group: SequenceGroup
    choice: int
    seed: int
    """The key of its own random numbers, int64."""
    max_tokens: int
    """The most new tokens: what was asked for, or what the model's context leaves."""
    sampling: Sampling
    needs_past: bool
    """Whether a token can be drawn only when the host knows the token before it."""
    state: State
    waiting_since: int = 0
    """The step in which it began to wait; valid while WAITING."""
    output: list[int] = field(default_factory=list)
    """The tokens drawn so far."""
    in_flight: int = 0
    """How many more tokens the steps in flight draw."""
    blocks: tuple[int, ...] = ()
    """Its block table. It is replaced, never changed in place, so siblings share one tuple until they diverge."""
    computed: int = 0
    """While in PREFILL: how many of its tokens have keys and values, or will have when the steps in flight have run."""
    keys: list[bytes] = field(default_factory=list)
    """The keys of its first full blocks, as far as they were needed."""
    to_replay: int = 0
    """While in DECODE: how many of its drawn tokens are run again before the newest one."""

    @property
    def age(self) -> tuple[int, int]:
        """The sort key, oldest first: the group's arrival, then the choice."""
        return self.group.arrival, self.choice

    @property
    def length(self) -> int:
        """The number of known tokens, prompt and output. While in DECODE the newest has no key and value yet."""
        return len(self.group.prompt) + len(self.output)

    @property
    def prefill_length(self) -> int:
        """How many of its tokens are computed in chunks."""
        return len(self.group.prompt) if self.group.replays else self.length

    @property
    def position(self) -> int:
        """While in DECODE: the position of the token that its next row runs."""
        return self.length - 1 + self.in_flight - self.to_replay

    @property
    def ending(self) -> bool:
        """Whether the newest token in flight is certainly its last."""
        return len(self.output) + self.in_flight >= self.max_tokens

    @property
    def ready(self) -> bool:
        """Whether a row of it can run now, whether or not its newest token is known."""
        return self.state is State.DECODE and not (self.in_flight and (self.needs_past or self.ending))

    @property
    def hindered(self) -> bool:
        """Whether a row of it could run now if its token in flight were known."""
        return self.state is State.DECODE and self.needs_past and self.in_flight > 0 and not self.ending

    @property
    def width(self) -> int:
        """How many sequences it runs, now or once it leaves prefill: for a group's leader, all living siblings."""
        return 1 if self.output or self.in_flight or self.group.alone else self.group.alive

    def span(self, start: int, end: int) -> tuple[int, ...]:
        """Return its tokens, of prompt and output, at positions start .. end - 1."""
        prompt = len(self.group.prompt)
        return (*self.group.prompt[start:end], *self.output[max(start - prompt, 0) : max(end - prompt, 0)])

    def name_blocks(self, count: int, block_size: int) -> None:
        """Compute the keys of its first `count` blocks, all of whose tokens must be known."""
        if (known := len(self.keys)) < count:
            before = self.keys[-1] if self.keys else self.group.root
            self.keys += prefix.chain(before, self.span(known * block_size, count * block_size), block_size)

    def move(self, state: State) -> None:
        """Change the state along TRANSITIONS. Any other change is a bug of the scheduler and raises RuntimeError."""
        if state not in TRANSITIONS[self.state]:
            raise RuntimeError(f"sequence {self.id} cannot go from {self.state.name} to {state.name}")
        self.state = state
