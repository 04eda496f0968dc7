"""A step's draws as a table on the device, one line of eight 64-bit words per draw; and how kernels read it.

The host packs it in numpy (engine/device/draws.py). Everything that changes from step to step is in it, so that a
kernel's launch stays the same.
"""

from __future__ import annotations

import numpy as np
import triton
import triton.language as tl

BLOCK = 256  # tokens whose weights are summed as one (engine/sampling/draw.py)

DRAW = np.dtype(
    [
        ("row", "<i8"),  # of the step's logits; ~e where it is row e of the edited ones
        (
            "same",
            "<i8",
        ),  # the first draw from the same distribution, this one itself if none is before; -1: draws nothing
        ("temperature", "<f8"),  # 0: the highest score
        ("min_p", "<f8"),
        ("top_k", "<i8"),
        ("top_p", "<f8"),
        ("seed", "<i8"),
        ("position", "<i8"),
    ]
)

_WORDS = tl.constexpr(len(DRAW.names or ()))
ROW, SAME, TEMPERATURE, MIN_P, TOP_K, TOP_P, SEED, POSITION = (tl.constexpr(word) for word in range(8))


@triton.jit
def whole(draws, draw, there, WORD: tl.constexpr):
    """One of a draw's whole numbers, int64; 0 where it is not `there`."""
    return tl.load(draws + draw * _WORDS + WORD, mask=there, other=0)


@triton.jit
def real(draws, draw, there, WORD: tl.constexpr):
    """One of a draw's real numbers, float64; 0 where it is not `there`."""
    return tl.load(draws + draw * _WORDS + WORD, mask=there, other=0).to(tl.float64, bitcast=True)


@triton.jit
def scores(logits, edited, row, stride, vocabulary, tokens, wanted):
    """Scores of some tokens of a row as DRAW has it, float32: -inf where not `wanted`, +inf for NaN, no -0.

    logits of any float dtype, rows `stride` apart; edited float32, rows whole, or None.
    """
    if edited is None:
        found = tl.load(logits + row * stride + tokens, mask=wanted, other=0.0).to(tl.float32)
    else:
        raw = tl.load(logits + row * stride + tokens, mask=wanted & (row >= 0), other=0.0).to(tl.float32)
        changed = tl.load(edited + (-1 - row) * vocabulary + tokens, mask=wanted & (row < 0), other=0.0)
        found = tl.where(row >= 0, raw, changed)
    found = tl.where(found == found, found + 0.0, float("inf"))
    return tl.where(wanted, found, float("-inf"))


@triton.jit
def base(top):
    """What weights are taken against: the highest score, or 0 where nothing is finite."""
    return tl.where((top > float("-inf")) & (top < float("inf")), top, 0.0)


@triton.jit
def weight(score, top, temperature):
    """exp((score - top) / temperature), at most 1; temperature 0 gives a number too, which nobody uses."""
    return tl.exp(tl.minimum(score - top, 0.0) / tl.where(temperature > 0, temperature, 1.0))
