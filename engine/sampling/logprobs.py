"""Log probabilities of raw logits: a token's own, its rank, and the likeliest tokens.

Raw: before every edit, mask, temperature and cut, so that they tell the model's own opinion (vLLM's default too).
Nothing is kept but the few values asked for: rows are taken a slice at a time. Of a slice torch's fused log-softmax
is three times as fast as its log-sum-exp alone.

Shapes: N rows of logits, V vocabulary, R rows of a slice, M tokens told of in it, K likeliest.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from engine.messages import Logprobs

_BLOCK = 128  # tokens of which only the best is looked at first
_VALUES = 1 << 22  # logits of a slice: 16 MB in float32


def positions(vocabulary: int) -> int:
    """How many rows of logits are worth having at once."""
    return max(_VALUES // vocabulary, 1)


def logprobs(logits: torch.Tensor, wanted: Sequence[tuple[int, int, int]]) -> list[Logprobs]:
    """Of each (row of logits [N, V], token, how many of the likeliest beside it); logits of any float dtype.

    Rank is 1 + the number of tokens that score higher. Of equals the lowest id counts as likelier, so an answer
    depends on its row alone, whatever else is asked for. Tokens that share a row are told from one computation.
    """
    told: list[Logprobs | None] = [None] * len(wanted)
    order = sorted(range(len(wanted)), key=lambda i: wanted[i][0])
    size = positions(logits.shape[1])
    for start in range(0, len(order), size):
        some = order[start : start + size]
        for i, one in zip(some, _slice(logits, [wanted[i] for i in some]), strict=True):
            told[i] = one
    return [one for one in told if one is not None]


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
    ranks = (theirs > scores[at, tokens].unsqueeze(1)).sum(-1, dtype=torch.int32).add_(1).tolist()
    tops: list[tuple[tuple[int, float], ...]] = [()] * len(rows)
    if count:
        best = highest(scores, count)  # [R, K]
        pairs = zip(best.tolist(), logs.gather(1, best).tolist(), strict=True)
        tops = [tuple(zip(ids, values, strict=True)) for ids, values in pairs]
    return [
        Logprobs(value, rank, tops[places[row]][:asked])
        for value, rank, (row, _, asked) in zip(own, ranks, wanted, strict=True)
    ]


def highest(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Ids of the `count` highest of each row [R, V] of float32 (not more than V), falling, of equals the lowest first.

    They lie in the `count` blocks whose best are the highest, so the whole row is only reduced, never sorted.
    """
    short = -scores.shape[1] % _BLOCK
    padded = F.pad(scores, (0, short), value=-torch.inf) if short else scores
    blocks = padded.view(len(scores), -1, _BLOCK)
    best = blocks.amax(-1)  # [R, blocks]
    chosen = _top(best, torch.arange(best.shape[1]), min(count, best.shape[1]))  # [R, k]
    ids = (chosen.unsqueeze(2) * _BLOCK + torch.arange(_BLOCK)).flatten(1)  # [R, k * block]
    inside = blocks.gather(1, chosen.unsqueeze(2).expand(-1, -1, _BLOCK)).flatten(1)
    return ids.gather(1, _top(inside, ids, count))


def _top(values: torch.Tensor, ids: torch.Tensor, count: int) -> torch.Tensor:
    """Where in each row the `count` highest float32 values are, falling; of equals, those of the lowest ids first.

    A float's bits, those of negative ones turned over, are in the order of the floats; with the id below
    them no two are equal.
    """
    bits = (values + 0.0).view(torch.int32)  # + 0.0: -0 becomes 0
    keys = (bits ^ (bits >> 31 & 0x7FFFFFFF)).long() << 32
    return (keys - ids).topk(count, dim=-1).indices
