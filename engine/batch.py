"""One step's work as plain values: what the scheduler hands to the runner, and what comes back; and its work list.

No torch here. Token ids, block numbers and positions are Python ints; a block number indexes the KV
cache; positions count from 0 at the sequence's first token.
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


@dataclass(frozen=True, slots=True)
class Draw:
    """One token to draw from one row of logits.

    sequence: who gets the token. seed: the sequence's own key (request seed + choice, int64).
    position: where the drawn token will stand in the sequence. The random numbers are a function of
    (seed, position) and nothing else. past: what stands before it, where `sampling` edits logits by it. banned:
    tokens that must not be drawn now, whatever sampling says. logprobs: as in Add.
    """

    sequence: int
    seed: int
    position: int
    sampling: Sampling
    past: Past | None = None
    banned: frozenset[int] = frozenset()
    logprobs: int | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """A stretch of one sequence's tokens to run through the model (prefill, or recomputation).

    tokens: the ids at positions start .. start + len(tokens) - 1. blocks: the block table that covers
    positions 0 .. start + len(tokens) - 1. draws: empty unless the chunk ends the prefill; then one
    for each sequence that leaves prefill here, all drawn from the last position's logits. next_tokens: where
    prompt log probabilities are asked for, the prompt's tokens at positions start + 1 .. start + len(tokens) (one
    fewer at the prompt's end) and, in `prompt_logprobs`, how many of the likeliest beside them. pooling: the
    hidden states are asked for, not a token; `last` says that the chunk ends the prompt. adapter: as in Add.
    """

    sequence: int
    tokens: tuple[int, ...]
    start: int
    blocks: tuple[int, ...]
    draws: tuple[Draw, ...] = ()
    next_tokens: tuple[int, ...] = ()
    prompt_logprobs: int = 0
    pooling: Literal["mean", "last"] | None = None
    last: bool = False
    adapter: str | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One decoding sequence: its newest token is run and the next one drawn.

    token stands at `position`; its key and value are written to blocks[position // block_size]. It is None where the
    batch submitted just before this one draws it, and it is still on the device; for runners that overlap only. Where
    that batch could draw nothing, or failed, any token does: what the row gives is not looked at.
    draw: None where the token that follows is known: the row ran before, and its keys and values were lost. adapter: as
    in Add. cut: in deterministic mode the position behind the whole blocks of the sequence's own prompt, where its
    attention is cut whether it shares them or not; else 0.
    """

    sequence: int
    token: int | None
    position: int
    blocks: tuple[int, ...]
    draw: Draw | None
    adapter: str | None = None
    cut: int = 0


class KvSpan(NamedTuple):
    """Key positions lo .. hi - 1 (lo a multiple of the block size) that some rows read together, by one block table.

    rows: positions in Batch.rows. However a device cuts it into items, this is what the rows read.
    """

    rows: tuple[int, ...]
    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class Item:
    """One entry of the attention work list: some rows read one span of KV, once.

    rows: positions in Batch.rows. blocks: the span's blocks, covering the absolute key positions
    lo .. hi - 1 (lo is a multiple of the block size). slot: number of the partial result of rows[0];
    the partial of rows[i] is slot + i. A row's partials are merged in the order of `lo`.
    """

    rows: tuple[int, ...]
    blocks: tuple[int, ...]
    lo: int
    hi: int
    slot: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Everything that one step runs. `copies` (source block, target block) are carried out first.

    kv_spans: what the rows read of the KV cache (plan_kv_spans). masks: by sequence, which tokens its grammar
    lets through now: bit t % 8 of byte t // 8 for token t.
    """

    copies: tuple[tuple[int, int], ...] = ()
    chunks: tuple[Chunk, ...] = ()
    rows: tuple[Row, ...] = ()
    kv_spans: tuple[KvSpan, ...] = ()
    masks: Mapping[int, bytes] = field(default_factory=dict)

    @property
    def draws(self) -> list[Draw]:
        """What is drawn, in the order of StepOutput."""
        of_chunks = [draw for chunk in self.chunks for draw in chunk.draws]
        return of_chunks + [row.draw for row in self.rows if row.draw is not None]


Stuck = Literal["rules", "scores"]
"""Why nothing can be drawn: a sequence's rules together leave no token, or the model's scores are not numbers."""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a step drew: (sequence, token id), chunks' draws first, then the rows', in batch order.

    logprobs: by sequence, of the drawn tokens for which they were asked. prompt_logprobs: by a chunk's
    sequence, those of its next_tokens. pooled: by a chunk's sequence, where it has `pooling`: for "mean" the sum of
    the hidden states of its tokens, every chunk's, as nothing is kept between steps; for "last" the hidden state of the
    prompt's last token, from the last chunk only. stuck: sequences that should have drawn and could not, and why.
    """

    tokens: tuple[tuple[int, int], ...] = ()
    logprobs: Mapping[int, Logprobs] = field(default_factory=dict)
    prompt_logprobs: Mapping[int, tuple[Logprobs, ...]] = field(default_factory=dict)
    pooled: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    stuck: Mapping[int, Stuck] = field(default_factory=dict)

    def result(self) -> StepOutput:
        """Itself: a step that is computed as it is submitted has nothing to wait for."""
        return self


@dataclass(frozen=True, slots=True)
class Reads:
    """Tokens of KV that one layer's decode attention reads in a step.

    items: by all of the work list. shared: for several rows at once. unshared: what it would have been if
    every row had read its whole past for itself.
    """

    items: int = 0
    shared: int = 0
    unshared: int = 0

    def __add__(self, other: Reads) -> Reads:
        return Reads(self.items + other.items, self.shared + other.shared, self.unshared + other.unshared)


def count_reads(rows: Sequence[Row], kv_spans: Sequence[KvSpan]) -> Reads:
    """Count what is read in some kv_spans, and what the same rows would have read without sharing."""
    return Reads(
        items=sum([hi - lo for _, lo, hi in kv_spans]),
        shared=sum([hi - lo for members, lo, hi in kv_spans if len(members) > 1]),
        unshared=sum([row.position + 1 for row in rows]),
    )


def plan_kv_spans(rows: Sequence[Row], block_size: int, *, gate: int = 0) -> tuple[KvSpan, ...]:
    """Plan the decode attention of some rows: each block that several rows share is read once for all of them.

    The rows' block tables form a tree (the fork tree, of any number of groups and any depth); it is walked
    from the root, a shared stretch going to all the rows below it, the rest of each row to itself.
    Every position of every row, the newest included, is covered exactly once; a row's kv_spans come
    in the order of `lo`.

    gate: a stretch of t tokens under r rows is shared only if (r - 1) * t, the tokens not read again, reaches it;
    below that its rows' own kv_spans begin earlier.

    A row with a `cut` has no stretch across it, shares nothing behind it, and before it only kv_spans that end at the
    cut of all their rows or at a multiple of SPAN: cut into items, its own part of them is the same in any company.

    Tables must be what forking gives: rows that hold the same block hold the same blocks before it.
    """
    kv_spans: list[KvSpan] = []
    whole_span = span_tokens(SPAN, block_size) // block_size
    # How many leading blocks a row may share: not the one that it writes to, whoever else's table names it.
    limits = [min(row.position, row.cut or row.position) // block_size for row in rows]
    # Each entry: rows that hold the same first `same` blocks, of which the first `start` are covered already.
    pending: list[tuple[tuple[int, ...], int, int]] = [(tuple(range(len(rows))), 0, 0)] if rows else []
    while pending:
        members, start, same = pending.pop()
        if len(members) == 1:
            row, lo = rows[members[0]], start * block_size
            if lo < row.cut <= row.position:
                kv_spans.append(KvSpan(members, lo, row.cut))
                lo = row.cut
            kv_spans.append(KvSpan(members, lo, row.position + 1))
            continue
        most = min([limits[member] for member in members])
        end = _common_blocks(rows, members, same, most)
        cuts = {rows[member].cut for member in members}
        shared = end if cuts <= {0, end * block_size} else end - end % whole_span
        if shared > start and (len(members) - 1) * (shared - start) * block_size >= gate:
            kv_spans.append(KvSpan(members, start * block_size, shared * block_size))
            start = shared
        parts: dict[int, list[int]] = {}
        together = start < end < max([limits[member] for member in members])
        for member in members:
            # Those that go no further may still share, without the others, what was not shared just now.
            last = -1 - len(rows) if together else ~member
            key = rows[member].blocks[end] if limits[member] > end else last
            parts.setdefault(key, []).append(member)
        pending.extend((tuple(part), start, end + 1) for part in reversed(parts.values()))
    return tuple(kv_spans)


def _common_blocks(rows: Sequence[Row], members: tuple[int, ...], known: int, most: int) -> int:
    """How many leading blocks all members share, up to `most`.

    `known` of them are shared for certain. Halving works because sharing a block means sharing all before it.
    """
    low, high = min(known, most), most
    while low < high:
        middle = (low + high) // 2
        if len({rows[member].blocks[middle] for member in members}) == 1:
            low = middle + 1
        else:
            high = middle
    return low


SPAN = 512
"""Tokens of KV to an item on a CPU, and the most that any device's spans may be a part of."""


def span_tokens(span: int, block_size: int) -> int:
    """A span in whole blocks."""
    return max(span // block_size, 1) * block_size


def cut_items(
    rows: Sequence[Row], kv_spans: Sequence[KvSpan], block_size: int, *, span: int = SPAN
) -> tuple[Item, ...]:
    """Cut kv_spans into items at multiples of `span` (rounded down to whole blocks), wherever they begin.

    So the cuts do not depend on who else is in the batch. A row's items come in the order of `lo`; slots are dense
    from 0.
    """
    items: list[Item] = []
    slot = 0
    span = span_tokens(span, block_size)
    for members, begin, end in kv_spans:
        table = rows[members[0]].blocks
        for lo in (begin, *range(begin - begin % span + span, end, span)):
            hi = min(lo - lo % span + span, end)
            items.append(Item(members, table[lo // block_size : -(-hi // block_size)], lo, hi, slot))
            slot += len(members)
    return tuple(items)
