"""One step's work as plain values: what the scheduler gives to the runner, and what comes back.

No torch here. Token ids, block numbers and positions are Python ints; a block number indexes the KV cache; positions
count from 0 at the sequence's first token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from engine.messages import Logprobs, Sampling


@dataclass(frozen=True, slots=True)
class Past:
    """The tokens of a sequence so far. `output` is the sequence's own list: read it within the step."""

    prompt: tuple[int, ...]
    output: Sequence[int]


@dataclass(slots=True)
class Draw:
    """One token to draw from one row of logits.

    It is not frozen, because one is made for every row of every step, and a frozen one takes three times as long to
    make; but it is never changed.
    """

    sequence: int
    """The sequence that gets the token."""
    seed: int
    """The sequence's own key (request seed + choice, int64). The random numbers are a function of (seed, position) and
    nothing else.
    """
    position: int
    """Where the drawn token will stand in the sequence."""
    sampling: Sampling
    past: Past | None = None
    """The tokens before it, if `sampling` edits logits by them."""
    banned: frozenset[int] = frozenset()
    """Tokens that must not be drawn now, whatever `sampling` says."""
    logprobs: int | None = None
    """As in Add."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A stretch of one sequence's tokens to run through the model (prefill, or recomputation)."""

    sequence: int
    tokens: tuple[int, ...]
    """The ids at positions start .. start + len(tokens) - 1."""
    start: int
    blocks: tuple[int, ...]
    """The block table that covers positions 0 .. start + len(tokens) - 1."""
    draws: tuple[Draw, ...] = ()
    """Empty unless the chunk ends the prefill; then one for each sequence that leaves prefill here, all drawn from the
    last position's logits.
    """
    next_tokens: tuple[int, ...] = ()
    """If prompt log probabilities are asked for: the prompt's tokens at positions start + 1 .. start + len(tokens) (one
    fewer at the prompt's end).
    """
    prompt_logprobs: int = 0
    """How many of the likeliest tokens are returned beside each of `next_tokens`."""
    pooling: Literal["mean", "last"] | None = None
    """If set, the hidden states are asked for, not a token."""
    last: bool = False
    """Whether the chunk ends the prefill."""
    adapter: str | None = None
    """As in Add."""


@dataclass(slots=True)
class Row:
    """One decoding sequence: its newest token is run and the next one drawn. Never changed, like Draw."""

    sequence: int
    token: int | None
    """The token at `position`. None if the batch submitted just before this one draws it and it is still on the device;
    for runners that overlap only. If that batch could draw nothing, or failed, any token will do: the row's result is
    ignored.
    """
    position: int
    """The token's position; its key and value are written to blocks[position // block_size]."""
    blocks: tuple[int, ...]
    draw: Draw | None
    """None if the token that follows is known: the row ran before, and its keys and values were lost."""
    adapter: str | None = None
    """As in Add."""
    cut: int = 0
    """In deterministic mode, the position behind the whole blocks of the sequence's own prompt. Its attention is cut
    there, whether or not it shares these blocks. Otherwise 0.
    """


class KvSpan(NamedTuple):
    """Key positions lo .. hi - 1 (lo is a multiple of the block size) that some rows read together, by one block table.

    rows: indices into Batch.rows. Devices cut spans into items in different ways, but the rows always read exactly
    this.
    """

    rows: tuple[int, ...]
    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Everything that one step runs."""

    copies: tuple[tuple[int, int], ...] = ()
    """(source block, target block) pairs, carried out first."""
    chunks: tuple[Chunk, ...] = ()
    rows: tuple[Row, ...] = ()
    kv_spans: tuple[KvSpan, ...] = ()
    """What the rows read of the KV cache (kv_spans.py)."""
    masks: Mapping[int, bytes] = field(default_factory=dict)
    """By sequence, which tokens its grammar allows now: bit t % 8 of byte t // 8 for token t."""
    number: int = 0
    """Counts the scheduler's batches."""
    continues: bool = False
    """Whether there is nothing in it but the rows of the batch with the number before, in the same order, each one
    position further, in the same blocks or with one more.
    """

    @property
    def draws(self) -> list[Draw]:
        """All draws, in the order of StepOutput."""
        of_chunks = [draw for chunk in self.chunks for draw in chunk.draws]
        return of_chunks + [row.draw for row in self.rows if row.draw is not None]


Stuck = Literal["rules", "logits"]
"""Why nothing can be drawn: a sequence's rules together leave no token, or its logits are not finite numbers."""

STUCK: Mapping[int, Stuck] = {-1: "rules", -2: "logits"}
"""The reason by the value that stands in place of a token, in C and in Triton alike."""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a step drew and computed."""

    tokens: tuple[tuple[int, int], ...] = ()
    """(sequence, token id) pairs: the chunks' draws first, then the rows', in batch order."""
    logprobs: Mapping[int, Logprobs] = field(default_factory=dict)
    """By sequence, for the drawn tokens for which they were asked."""
    prompt_logprobs: Mapping[int, tuple[Logprobs, ...]] = field(default_factory=dict)
    """By a chunk's sequence, those of the chunk's next_tokens."""
    pooled: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    """By a chunk's sequence, for chunks with `pooling`. For "mean", the sum of the hidden states of the chunk's tokens,
    for every chunk, because nothing is kept between steps. For "last", the hidden state of the prompt's last token,
    from the last chunk only.
    """
    stuck: Mapping[int, Stuck] = field(default_factory=dict)
    """Sequences that should have drawn and could not, and why."""

    def result(self) -> StepOutput:
        """Return itself: a step that is computed when it is submitted has nothing to wait for."""
        return self
