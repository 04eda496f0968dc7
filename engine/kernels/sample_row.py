"""Draws tokens: the two races of docs/adr/0008, first among blocks of 256 tokens, then inside the block that won.

Two launches, whatever is drawn: `block_sums` passes over the logits once, with programs for every piece of every row,
and `sample_row` has one program per draw, which reads the blocks' sums and one block.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine.kernels import launch
from engine.kernels.draw_table import BLOCK, POSITION, ROW, SAME, SEED, TEMPERATURE, base, real, scores, weight, whole
from engine.kernels.noise import exponentials


@triton.jit
def _block_sums(
    logits, edited, draws, lowest, best, sums, stride, vocabulary, blocks, SIZE: tl.constexpr, PIECE: tl.constexpr
):
    draw = tl.program_id(1).to(tl.int64)
    wanted = whole(draws, draw, True, SAME) == draw
    least = float("-inf")
    if lowest is not None:
        least = tl.load(lowest + draw)
        wanted &= least > float("-inf")  # else it stands as it is
    if wanted:
        block = tl.program_id(0) * PIECE + tl.arange(0, PIECE)
        tokens = block[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
        row = whole(draws, draw, True, ROW)
        found = scores(logits, edited, row, stride, vocabulary, tokens, tokens < vocabulary)
        found = tl.where(found >= least, found, float("-inf"))
        top = tl.max(found, 1)
        weights = weight(found, base(top)[:, None], real(draws, draw, True, TEMPERATURE).to(tl.float32))
        at = draw * blocks + block
        tl.store(best + at, top, mask=block < blocks)
        tl.store(sums + at, tl.sum(weights, 1), mask=block < blocks)


@triton.jit
def _quotients(weights, scores_, seeds, positions, temperatures, STREAM: tl.constexpr, COUNT: tl.constexpr):
    """What the largest of wins: weights over exponential variates, or the scores themselves at temperature 0."""
    raced = weights.to(tl.float64) / exponentials(seeds, positions, STREAM, COUNT)
    return tl.where(temperatures[:, None] > 0, raced, scores_.to(tl.float64))


@triton.jit(do_not_specialize=["count"])
def _sample_row(
    logits,
    edited,
    draws,
    lowest,
    best,
    sums,
    drawn,
    tokens,
    count,
    stride,
    vocabulary,
    blocks,
    SIZE: tl.constexpr,
    BLOCKS: tl.constexpr,
    DRAWS: tl.constexpr,
):
    draw = tl.program_id(0).to(tl.int64) * DRAWS + tl.arange(0, DRAWS)
    same = whole(draws, draw, draw < count, SAME)
    there = (draw < count) & (same >= 0)
    temperature = real(draws, draw, there, TEMPERATURE).to(tl.float32)
    seed, position = whole(draws, draw, there, SEED), whole(draws, draw, there, POSITION)

    block = tl.arange(0, BLOCKS)[None, :]
    at, inside = same[:, None] * blocks + block, there[:, None] & (block < blocks)
    tops = tl.load(best + at, mask=inside, other=float("-inf"))  # [DRAWS, BLOCKS]
    top = tl.max(tops, 1)
    shares = tl.load(sums + at, mask=inside, other=0.0) * weight(tops, base(top)[:, None], temperature[:, None])
    first = tl.argmax(_quotients(shares, tops, seed, position, temperature, 0, BLOCKS), 1) * SIZE

    token = first[:, None] + tl.arange(0, SIZE)[None, :]
    row = whole(draws, draw, there, ROW)[:, None]
    found = scores(logits, edited, row, stride, vocabulary, token, there[:, None] & (token < vocabulary))
    if lowest is not None:
        least = tl.load(lowest + same, mask=there, other=0.0)
        found = tl.where(found >= least[:, None], found, float("-inf"))
    weights = weight(found, base(tl.max(found, 1))[:, None], temperature[:, None])
    winner = first + tl.argmax(_quotients(weights, found, seed, position, temperature, 1, SIZE), 1)

    able = (top > float("-inf")) & (top < float("inf"))
    tl.store(drawn + draw, tl.where(able, winner, tl.where(top < 0, -1, -2)), mask=there)
    tl.store(tokens + draw, tl.where(able, winner, 0).to(tl.int64), mask=there)


def block_sums(
    logits: torch.Tensor,
    edited: torch.Tensor | None,
    draws: torch.Tensor,
    best: torch.Tensor,
    sums: torch.Tensor,
    lowest: torch.Tensor | None = None,
) -> None:
    """Compute, for each distribution and block of 256 tokens, its highest score and the sum of its weights relative to
    that.

    logits [N, V] of any float dtype, a row's numbers contiguous; edited float32 [E, V] or None; draws int64 [M, 8] as
    in DRAW. best and sums, float32 [M, blocks], are written in the lines of draws whose `same` is their own number.
    lowest float32 [M]: if given, only scores that are at least as high count, and lines for which it is -inf are left
    unchanged.
    """
    vocabulary, blocks = logits.shape[1], best.shape[1]
    grid = triton.cdiv(blocks, launch.SUM_BLOCKS), len(draws)
    _block_sums[grid](
        logits,
        edited,
        draws,
        lowest,
        best,
        sums,
        logits.stride(0),
        vocabulary,
        blocks,
        SIZE=BLOCK,
        PIECE=launch.SUM_BLOCKS,
        num_warps=launch.SUM_WARPS,
    )


def sample_row(
    logits: torch.Tensor,
    edited: torch.Tensor | None,
    draws: torch.Tensor,
    best: torch.Tensor,
    sums: torch.Tensor,
    drawn: torch.Tensor,
    tokens: torch.Tensor,
    lowest: torch.Tensor | None = None,
) -> None:
    """Draw a token for each of draws [M, 8] (reference.race, or the highest score, the lowest id if equal).

    best, sums [M, blocks] and lowest are those of block_sums. drawn int32 [M]: the token; -1 if none is left, -2 if the
    highest score is not finite. tokens int64 [M]: the same with 0 in these cases, so that a step can begin from it
    before the host has looked at it.
    """
    _sample_row[(triton.cdiv(len(draws), launch.RACE_DRAWS),)](
        logits,
        edited,
        draws,
        lowest,
        best,
        sums,
        drawn,
        tokens,
        len(draws),
        logits.stride(0),
        logits.shape[1],
        best.shape[1],
        SIZE=BLOCK,
        BLOCKS=max(triton.next_power_of_2(best.shape[1]), 4),
        DRAWS=launch.RACE_DRAWS,
        num_warps=launch.RACE_WARPS,
    )
