"""What min-p, top-k and top-p keep of a distribution, as the lowest score that is kept: exact, without a sort.

A first program passes over a row and writes down the candidates, the scores that may still be the edge. A second one
halves the interval that contains the edge, twice per pass over the candidates, until one float is left: floats sort
like their bits (with those of negative ones inverted). Sums and counts are in float64 in a fixed order, so the edge is
a function of the row and its settings. If nothing is cut, both end at once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels import launch
from engine.kernels.draw_table import (
    BLOCK,
    MIN_P,
    ROW,
    SAME,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    real,
    scores,
    weight,
    whole,
)


@triton.jit
def _key(score):
    """A float32's place among all of them, int64."""
    bits = score.to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)


@triton.jit
def _score(key):
    """The float32 at a place."""
    bits = key.to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _kth(values, k, top):
    """The k-th highest of some values that are all in registers; -inf where there are not so many."""
    low = _key(tl.full([], float("-inf"), tl.float32))
    high = _key(top) + 1
    while high - low > 1:
        middle = (low + high) >> 1
        enough = tl.sum((values >= _score(middle)).to(tl.int32), 0) >= k
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    return _score(low)


@triton.jit
def _held(candidates, count, least, top, temperature, WEIGHED: tl.constexpr, WIDTH: tl.constexpr, STAGES: tl.constexpr):
    """The weight of the candidates from `least` up, or how many these are; float64."""
    held = tl.zeros([WIDTH], tl.float64)
    for start in tl.range(0, count, WIDTH, num_stages=STAGES):
        place = start + tl.arange(0, WIDTH)
        score = tl.load(candidates + place, mask=place < count, other=float("-inf"))
        mass = weight(score, top, temperature) if WEIGHED else tl.full([WIDTH], 1.0, tl.float32)
        held += tl.where((score >= least) & (place < count), mass, 0.0).to(tl.float64)
    return tl.sum(held, 0)


@triton.jit
def _edge(
    candidates, count, needed, least, top, temperature, WEIGHED: tl.constexpr, WIDTH: tl.constexpr, STAGES: tl.constexpr
):
    """The highest score from which up candidates hold what is needed; `least` where not even all from there on do."""
    low, high = _key(least), _key(top) + 1
    while high - low > 1:
        span = high - low
        one, two, three = low + span // 4, low + span // 2, low + span // 4 + span // 2
        first, second, third = _score(one), _score(two), _score(three)
        from_one = tl.zeros([WIDTH], tl.float64)
        from_two = tl.zeros([WIDTH], tl.float64)
        from_three = tl.zeros([WIDTH], tl.float64)
        for start in tl.range(0, count, WIDTH, num_stages=STAGES):
            place = start + tl.arange(0, WIDTH)
            score = tl.load(candidates + place, mask=place < count, other=float("-inf"))
            mass = weight(score, top, temperature) if WEIGHED else tl.full([WIDTH], 1.0, tl.float32)
            mass = tl.where(place < count, mass, 0.0)
            from_one += tl.where(score >= first, mass, 0.0).to(tl.float64)
            from_two += tl.where(score >= second, mass, 0.0).to(tl.float64)
            from_three += tl.where(score >= third, mass, 0.0).to(tl.float64)
        has_one, has_two = tl.sum(from_one, 0) >= needed, tl.sum(from_two, 0) >= needed
        has_three = tl.sum(from_three, 0) >= needed
        high = tl.where(has_three, high, tl.where(has_two, three, tl.where(has_one, two, one)))
        low = tl.where(has_three, three, tl.where(has_two, two, tl.where(has_one, one, low)))
    return _score(low)


@triton.jit
def _candidates(
    logits,
    edited,
    draws,
    best,
    candidates,
    counts,
    totals,
    lowest,
    stride,
    vocabulary,
    blocks,
    SIZE: tl.constexpr,
    BLOCKS: tl.constexpr,
    PIECE: tl.constexpr,
    STAGES: tl.constexpr,
):
    draw = tl.program_id(0).to(tl.int64)
    min_p, top_p = real(draws, draw, True, MIN_P), real(draws, draw, True, TOP_P)
    top_k, wide = whole(draws, draw, True, TOP_K), real(draws, draw, True, TEMPERATURE)
    by_count = (top_k > 0) & (top_k < vocabulary)
    block = tl.arange(0, BLOCKS)
    tops = tl.load(best + draw * blocks + block, mask=block < blocks, other=float("-inf"))
    top = tl.max(tops, 0)
    cuts = (min_p > 0) | by_count | (top_p < 1)
    cuts &= (whole(draws, draw, True, SAME) == draw) & (wide > 0) & (top > float("-inf")) & (top < float("inf"))
    count = 0
    least = tl.full([], float("-inf"), tl.float32)
    if cuts:
        temperature = wide.to(tl.float32)
        if min_p > 0:
            least = (top.to(tl.float64) + wide * tl.log(min_p)).to(tl.float32)
        likely = least
        if by_count:
            # The k-th highest of all is at least the k-th highest of the blocks' best.
            if top_k <= blocks:
                likely = tl.maximum(least, _kth(tops, top_k, top))
        elif top_p < 1:
            # What is below this holds less than half of 1 - top_p of the highest's weight, all together.
            few = (top.to(tl.float64) + wide * tl.log((1 - top_p) / (2 * vocabulary))).to(tl.float32)
            likely = tl.maximum(least, few)
        of_all = (top_p < 1) & ((top_k <= 0) | (top_k >= vocabulary))  # top-p needs the sum of what min-p leaves
        total = tl.zeros([SIZE * PIECE], tl.float64)
        row = whole(draws, draw, True, ROW)
        for start in tl.range(0, blocks, PIECE, num_stages=STAGES):
            token = start * SIZE + tl.arange(0, SIZE * PIECE)
            found = scores(logits, edited, row, stride, vocabulary, token, token < vocabulary)
            kept = (found >= likely) & (found > float("-inf"))
            place = count + tl.cumsum(kept.to(tl.int32), 0) - 1
            tl.store(candidates + draw * vocabulary + place, found, mask=kept)
            count += tl.sum(kept.to(tl.int32), 0)
            if of_all:
                total += tl.where(found >= least, weight(found, top, temperature), 0.0).to(tl.float64)
        tl.store(totals + draw, tl.sum(total, 0))
        least = likely
    tl.store(counts + draw, count)
    tl.store(lowest + draw, least)


@triton.jit
def _lowest_kept(
    draws,
    best,
    candidates,
    counts,
    totals,
    lowest,
    vocabulary,
    blocks,
    BLOCKS: tl.constexpr,
    WIDTH: tl.constexpr,
    STAGES: tl.constexpr,
):
    draw = tl.program_id(0).to(tl.int64)
    count = tl.load(counts + draw)
    if count > 0:
        mine = candidates + draw * vocabulary
        block = tl.arange(0, BLOCKS)
        top = tl.max(tl.load(best + draw * blocks + block, mask=block < blocks, other=float("-inf")), 0)
        temperature = real(draws, draw, True, TEMPERATURE).to(tl.float32)
        top_k, top_p = whole(draws, draw, True, TOP_K), real(draws, draw, True, TOP_P)
        by_count = (top_k > 0) & (top_k < vocabulary)
        least = tl.load(lowest + draw)
        if by_count:
            least = _edge(mine, count, top_k.to(tl.float64), least, top, temperature, False, WIDTH, STAGES)
        if top_p < 1:
            total = tl.load(totals + draw)
            if by_count:
                total = _held(mine, count, least, top, temperature, True, WIDTH, STAGES)
            least = _edge(mine, count, total * top_p, least, top, temperature, True, WIDTH, STAGES)
        tl.store(lowest + draw, least)


def topk_topp(
    logits: torch.Tensor, edited: torch.Tensor | None, draws: torch.Tensor, best: torch.Tensor
) -> torch.Tensor:
    """Return the lowest score that each of draws [M, 8] keeps (reference.kept_tokens); float32 [M], -inf if nothing is
    cut.

    logits, edited and draws as in block_sums, best [M, blocks] as written by it. min-p keeps tokens that are at least
    min_p times as likely as the likeliest, top-k the k highest, top-p the shortest list of the likeliest that holds
    top_p of what the others leave; all tokens equal to the edge are kept. Lines of draws that share another's
    distribution hold -inf.
    """
    draws_, vocabulary, blocks = len(draws), logits.shape[1], best.shape[1]
    candidates = torch.empty(draws_, vocabulary, dtype=torch.float32, device=logits.device)
    counts = torch.empty(draws_, dtype=torch.int32, device=logits.device)
    totals = torch.empty(draws_, dtype=torch.float64, device=logits.device)
    lowest = torch.empty(draws_, dtype=torch.float32, device=logits.device)
    shape = max(triton.next_power_of_2(blocks), 4)
    _candidates[(draws_,)](
        logits,
        edited,
        draws,
        best,
        candidates,
        counts,
        totals,
        lowest,
        logits.stride(0),
        vocabulary,
        blocks,
        SIZE=BLOCK,
        BLOCKS=shape,
        PIECE=min(launch.CUT_BLOCKS, shape),
        STAGES=launch.ROW_STAGES,
        num_warps=launch.CUT_WARPS,
    )
    _lowest_kept[(draws_,)](
        draws,
        best,
        candidates,
        counts,
        totals,
        lowest,
        vocabulary,
        blocks,
        BLOCKS=shape,
        WIDTH=launch.EDGE_WIDTH,
        STAGES=launch.ROW_STAGES,
        num_warps=launch.CUT_WARPS,
    )
    return lowest
