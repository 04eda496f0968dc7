"""Edits of logits on the device, like engine/sampling/edits.py on a CPU; rows without edits are not copied.

The host finds the changes (engine/sampling/rules.py). Masks and allowed tokens come as bits and are applied while a row
is copied; the rest come as flat lists of (row, token) pairs, with one launch for each kind that a step has, in the
order of the rules. Within a list the pairs are distinct, or repeat the same change.

Shapes: E edited rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
import triton
import triton.language as tl

from engine.kernels import launch

CHANGE = np.dtype(
    [
        ("row", "<i8"),  # of the step's logits
        ("mask", "<i8"),  # line of the masks; -1: every token may stay
        ("repetition", "<f8"),
        ("frequency", "<f8"),
        ("presence", "<f8"),
    ]
)

_WORDS = tl.constexpr(len(CHANGE.names or ()))
_ROW, _MASK, _REPETITION, _FREQUENCY, _PRESENCE = (tl.constexpr(word) for word in range(5))


@triton.jit
def _copy(logits, changes, masks, edited, stride, vocabulary, bytes_, WIDTH: tl.constexpr):
    line = tl.program_id(1).to(tl.int64)
    token = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    there = token < vocabulary
    row = tl.load(changes + line * _WORDS + _ROW)
    score = tl.load(logits + row * stride + token, mask=there, other=0.0).to(tl.float32)
    if masks is not None:
        mask = tl.load(changes + line * _WORDS + _MASK)
        byte = tl.load(masks + mask * bytes_ + token // 8, mask=there & (mask >= 0), other=255).to(tl.int32)
        score = tl.where(((byte >> (token % 8)) & 1) == 1, score, float("-inf"))
    tl.store(edited + line * vocabulary + token, score, mask=there)


@triton.jit(do_not_specialize=["count"])
def _exclude(edited, pairs, count, WIDTH: tl.constexpr):
    pair = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    at = tl.load(pairs + pair, mask=pair < count, other=0)
    tl.store(edited + at, tl.full([WIDTH], float("-inf"), tl.float32), mask=pair < count)


@triton.jit(do_not_specialize=["count"])
def _add(edited, pairs, bias, count, WIDTH: tl.constexpr):
    pair = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    there = pair < count
    at = tl.load(pairs + pair, mask=there, other=0)
    score = tl.load(edited + at, mask=there, other=0.0) + tl.load(bias + pair, mask=there, other=0.0)
    tl.store(edited + at, score, mask=there)


@triton.jit
def _setting(changes, line, there, WORD: tl.constexpr):
    return tl.load(changes + line * _WORDS + WORD, mask=there, other=0).to(tl.float64, bitcast=True).to(tl.float32)


@triton.jit(do_not_specialize=["count"])
def _penalize(edited, changes, pairs, times, count, vocabulary, WIDTH: tl.constexpr):
    pair = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    there = pair < count
    at = tl.load(pairs + pair, mask=there, other=0)
    line = at // vocabulary
    score = tl.load(edited + at, mask=there, other=0.0)
    repeated = tl.where(there, _setting(changes, line, there, _REPETITION), 1.0)
    score = tl.where(score > 0, score / repeated, score * repeated)
    held = tl.load(times + pair, mask=there, other=0.0)
    score -= _setting(changes, line, there, _FREQUENCY) * held
    score -= tl.where(held > 0, _setting(changes, line, there, _PRESENCE), 0.0)
    tl.store(edited + at, score, mask=there)


def logits_edit(logits: torch.Tensor, arrays: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Return the edited rows of logits [N, V], of any float dtype, as the arrays say; float32 [E, V].

    changes int64 [E, 5] as in CHANGE. The others exist only if a step needs them: masks uint8 [masks, V / 8], bit t % 8
    of byte t // 8 allows token t; then lists of line x V + token, int64: excluded; biased, with bias float32 to add;
    tallied, with times float32, how often the output holds the token (0: only in the prompt).
    """
    changes, vocabulary = arrays["changes"], logits.shape[1]
    edited = torch.empty(len(changes), vocabulary, dtype=torch.float32, device=logits.device)
    masks = arrays.get("masks")
    _copy[triton.cdiv(vocabulary, launch.COPY_TOKENS), len(changes)](
        logits,
        changes,
        masks,
        edited,
        logits.stride(0),
        vocabulary,
        0 if masks is None else masks.shape[1],
        WIDTH=launch.COPY_TOKENS,
        num_warps=launch.COPY_WARPS,
    )
    pairs = {"WIDTH": launch.PAIRS, "num_warps": launch.PAIR_WARPS}
    if (excluded := arrays.get("excluded")) is not None:
        _exclude[_programs(excluded)](edited, excluded, len(excluded), **pairs)
    if (biased := arrays.get("biased")) is not None:
        _add[_programs(biased)](edited, biased, arrays["bias"], len(biased), **pairs)
    if (tallied := arrays.get("tallied")) is not None:
        _penalize[_programs(tallied)](edited, changes, tallied, arrays["times"], len(tallied), vocabulary, **pairs)
    return edited


def _programs(pairs: torch.Tensor) -> tuple[int]:
    return (triton.cdiv(len(pairs), launch.PAIRS),)
