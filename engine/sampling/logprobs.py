"""Log probabilities of raw logits: a token's own, its rank, and the likeliest tokens.

Raw means before every edit, mask, temperature and cut, so that they show the model's own distribution (vLLM's default
too). Only the few values asked for are kept: rows are processed a slice at a time. On a slice, torch's fused
log-softmax is three times as fast as its log-sum-exp alone.

Shapes: N rows of logits, V vocabulary, R rows of a slice, M tokens asked for in it, K likeliest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from engine.messages import Logprobs
from engine.sampling.highest import highest

Score = Callable[[torch.Tensor, Sequence[tuple[int, int, int]]], list[Logprobs]]
"""Finds log probabilities like `logprobs`."""

_SLICE = 1 << 21  # logits of a slice: 8 MB in float32


def positions(vocabulary: int) -> int:
    """Return how many rows of logits make a slice."""
    return max(_SLICE // vocabulary, 1)


def logprobs(logits: torch.Tensor, wanted: Sequence[tuple[int, int, int]]) -> list[Logprobs]:
    """Return the log probabilities for each (row of logits [N, V], token, how many of the likeliest beside it).

    Logits are of any float dtype. Rank is 1 + the number of tokens that score higher. Of equal scores the lowest id
    counts as likelier, so an answer depends on its row alone, whatever else is asked for. Tokens that share a row share
    the computation.
    """
    found: list[Logprobs | None] = [None] * len(wanted)
    order = sorted(range(len(wanted)), key=lambda i: wanted[i][0])
    size = positions(logits.shape[1])
    for start in range(0, len(order), size):
        some = order[start : start + size]
        for i, one in zip(some, _slice(logits, [wanted[i] for i in some]), strict=True):
            found[i] = one
    return [one for one in found if one is not None]


def _slice(logits: torch.Tensor, wanted: Sequence[tuple[int, int, int]]) -> list[Logprobs]:
    rows = list(dict.fromkeys([row for row, *_ in wanted]))
    places = {row: i for i, row in enumerate(rows)}
    at = torch.tensor([places[row] for row, *_ in wanted])  # [M]
    tokens = torch.tensor([token for _, token, _ in wanted])  # [M]
    count = min(max([count for *_, count in wanted]), logits.shape[1])
    scores = logits if rows == list(range(len(logits))) else logits.index_select(0, torch.tensor(rows))
    scores = scores.float()  # [R, V]
    logs = scores.log_softmax(-1)
    own = logs[at, tokens].tolist()
    theirs = scores if len(rows) == len(wanted) else scores.index_select(0, at)  # [M, V]
    # Into floats: torch compares several times as fast if it need not make booleans.
    higher = torch.gt(theirs, scores[at, tokens].unsqueeze(1), out=torch.empty_like(theirs)).sum(-1).tolist()
    tops: list[tuple[tuple[int, float], ...]] = [()] * len(rows)
    if count:
        best = highest(scores, count)  # [R, K]
        pairs = zip(best.tolist(), logs.gather(1, best).tolist(), strict=True)
        tops = [tuple(zip(ids, values, strict=True)) for ids, values in pairs]
    return [
        Logprobs(value, 1 + int(above), tops[places[row]][:asked])
        for value, above, (row, _, asked) in zip(own, higher, wanted, strict=True)
    ]
