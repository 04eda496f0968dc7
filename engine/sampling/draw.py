"""From logits to tokens: temperature, min-p, top-k, top-p, then two races of exponential variates.

A drawn token is a function of its row of logits, its settings and random numbers that are a function of (seed,
position). There is no generator state, so neither the order of a batch nor its other sequences can change an answer.

Given weights w and standard exponential variates E, the largest w / E falls on each weight with a probability
proportional to it (the Gumbel-max trick without its logarithms; Maddison, Tarlow and Minka, "A* sampling", NeurIPS
2014). This is done twice: among fixed blocks of the vocabulary by their sums, then among the tokens of the block that
won. So a few hundred random numbers are enough, and rounding in the logits changes the token only if two candidates are
almost equal. The inverse of the cumulative distribution needs one number only, but rounding moves the edges of all its
tokens, and the intervals of the many unlikely ones are narrower than that.

Draws that share a row and settings (the n choices that leave prefill together) share the distribution.

Shapes: N rows of logits, V vocabulary, P distributions, M draws.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from engine.batch import Draw, Stuck
from engine.messages import Sampling
from engine.sampling.highest import highest
from engine.sampling.philox import exponentials

_BLOCK = 256  # tokens whose weights are summed as one
_FEW = 64  # up to this top_k, the likeliest tokens of all rows together are found faster than the k-th of each row
_COLDEST = 1e-5  # temperatures below it are greedy: the division would overflow


class Kind(NamedTuple):
    """What determines a distribution: a row of logits and the settings that shape it."""

    row: int
    temperature: float = 1.0
    min_p: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    @property
    def cuts(self) -> bool:
        """Whether it excludes any token."""
        return self.min_p > 0 or self.top_k > 0 or self.top_p < 1


Exponentials = Callable[[torch.Tensor, torch.Tensor, Sequence[int]], list[torch.Tensor]]
"""Standard exponential variates of seeds and positions, int64 [M]: for each of some counts float64 [M, count]."""

FromScores = Callable[[torch.Tensor, Sequence[int], Sequence[Draw]], list[int | Stuck] | None]
"""Draws like `draw`. Returns for each a token, or why there is none; None if it does not support the scores' dtype."""


def draw(
    logits: torch.Tensor, rows: Sequence[int], draws: Sequence[Draw], noise: Exponentials = exponentials
) -> list[int]:
    """Draw one token for each of `draws`, the i-th from logits[rows[i]]; logits [N, V], any float dtype.

    Temperature below 1e-5 and top_k 1 take the highest score (the lowest id if equal). min-p, top-k and top-p look at
    the distribution at its temperature; top-k and top-p keep all values equal to their edge; top-p is of what the
    others left.
    """
    tokens = [0] * len(draws)
    sure = [i for i, d in enumerate(draws) if greedy(d.sampling)]
    if sure:
        best = _likeliest(logits, [rows[i] for i in sure])
        for i in sure:
            tokens[i] = best[rows[i]]
    if len(sure) < len(draws):
        drawn = sorted(set(range(len(draws))).difference(sure))
        sampled = _sample(logits, [rows[i] for i in drawn], [draws[i] for i in drawn], noise)
        for i, token in zip(drawn, sampled, strict=True):
            tokens[i] = token
    return tokens


def greedy(sampling: Sampling) -> bool:
    """Whether the highest score is drawn, whatever the random numbers are."""
    return sampling.temperature < _COLDEST or sampling.top_k == 1


def _likeliest(logits: torch.Tensor, rows: Sequence[int]) -> dict[int, int]:
    """Return the id of the highest score of each of some rows."""
    distinct = list(dict.fromkeys(rows))
    best = highest(_rows(logits, distinct), 1)
    return dict(zip(distinct, best.flatten().tolist(), strict=True))


def _sample(logits: torch.Tensor, rows: Sequence[int], draws: Sequence[Draw], noise: Exponentials) -> list[int]:
    kinds: dict[Kind, int] = {}  # -> distribution
    which = [kinds.setdefault(_kind(row, d.sampling), len(kinds)) for row, d in zip(rows, draws, strict=True)]
    weights = _weights(logits, list(kinds))  # [P, V rounded up to blocks]
    seeds = torch.tensor([d.seed for d in draws])
    positions = torch.tensor([d.position for d in draws])
    blocks = weights.view(len(weights), -1, _BLOCK)  # [P, V / block, block]
    tokens: list[int] = _race(blocks, torch.tensor(which), noise(seeds, positions, (blocks.shape[1], _BLOCK))).tolist()
    return tokens


def _kind(row: int, sampling: Sampling) -> Kind:
    return Kind(row, sampling.temperature, sampling.min_p, sampling.top_k, sampling.top_p)


def _weights(logits: torch.Tensor, kinds: Sequence[Kind]) -> torch.Tensor:
    """Return the probabilities of each distribution, 0 for what min-p, top-k and top-p drop (not
    renormalized); float32.
    """
    scores = _rows(logits, [kind.row for kind in kinds])
    if any(kind.temperature != 1 for kind in kinds):
        temperatures = torch.tensor([kind.temperature for kind in kinds], dtype=torch.float32).unsqueeze(1)
        scores = (scores - scores.amax(-1, keepdim=True)).div_(temperatures)  # the highest is 0, so none overflows
    weights = scores.softmax(-1)  # [P, V]
    if any(kind.cuts for kind in kinds):
        lowest = _lowest_kept(weights, kinds).unsqueeze(1)
        # Into floats: torch compares several times as fast if it need not make booleans.
        weights *= torch.ge(weights, lowest, out=torch.empty_like(weights))
    short = -weights.shape[1] % _BLOCK
    return F.pad(weights, (0, short)) if short else weights


def _rows(logits: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    """Return some rows of logits [N, V] in float32; `logits` itself if that is the same."""
    chosen = logits if rows == list(range(len(logits))) else logits.index_select(0, torch.tensor(rows))
    return chosen.float()


def _lowest_kept(weights: torch.Tensor, kinds: Sequence[Kind]) -> torch.Tensor:
    """Return the lowest weight in each row [P, V] that min-p, top-k and then top-p leave; [P]."""
    vocabulary = weights.shape[1]
    lowest = torch.zeros(len(kinds))
    if for_min := [i for i, kind in enumerate(kinds) if kind.min_p > 0]:
        lowest[for_min] = weights[for_min].amax(-1) * torch.tensor([kinds[i].min_p for i in for_min])
    if for_k := [i for i, kind in enumerate(kinds) if 0 < kind.top_k <= min(_FEW, vocabulary - 1)]:
        last = torch.tensor([kinds[i].top_k for i in for_k]).unsqueeze(1) - 1
        part = weights[for_k]
        edge = part.gather(1, highest(part, int(last.max()) + 1).gather(1, last)).squeeze(1)
        lowest[for_k] = torch.maximum(lowest[for_k], edge)
    for i, kind in enumerate(kinds):
        if _FEW < kind.top_k < vocabulary:
            place = vocabulary - kind.top_k
            lowest[i] = max(float(lowest[i]), float(np.partition(weights[i].numpy(), place)[place]))
        if kind.top_p < 1:
            lowest[i] = _nucleus_edge(weights[i].numpy(), float(lowest[i]), kind.top_p)
    return lowest


def _nucleus_edge(weights: npt.NDArray[np.float32], lowest: float, top_p: float) -> float:
    """Return the lowest of the likeliest weights [V] that together hold `top_p` of all weights from `lowest` up.

    Weights below (1 - top_p) / V of the sum hold less than 1 - top_p all together, so only the rest is sorted.
    """
    left = weights[weights >= lowest] if lowest > 0 else weights
    total = float(left.sum(dtype=np.float64))
    likely = left[left >= np.float32(total * (1 - top_p) / len(weights))]
    falling = np.sort(likely)[::-1]
    needed = int(np.searchsorted(np.cumsum(falling, dtype=np.float64), total * top_p))
    return float(falling[min(needed, len(falling) - 1)])


def _race(blocks: torch.Tensor, which: torch.Tensor, noise: Sequence[torch.Tensor]) -> torch.Tensor:
    """Draw from distributions `which` [M] of weights [P, V / block, block]; return token ids [M].

    noise: exponential variates for the blocks [M, V / block], and for the tokens of the winning block [M, block].
    """
    of_blocks, of_tokens = noise
    sums = blocks.sum(-1)[which]  # [M, V / block]
    block = (sums / of_blocks).argmax(-1)
    inside = blocks[which, block]  # [M, block]
    return block * _BLOCK + (inside / of_tokens).argmax(-1)
