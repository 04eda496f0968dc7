"""From logits to tokens: temperature, min-p, top-k, top-p, then two races of exponential variates.

A drawn token is a function of its row of logits, its settings and random numbers that are a function of
(seed, position): no generator state, so neither the order of a batch nor who else is in it can change an
answer.

Of weights w and standard exponential variates E, the largest w / E falls on each weight with a probability
proportional to it (the Gumbel-max trick without its logarithms; Maddison, Tarlow and Minka, "A* sampling",
NeurIPS 2014). It is done twice: among fixed blocks of the vocabulary by their sums, then among the tokens of
the block that won. So a few hundred random numbers are enough, and rounding in the logits changes the token
only where two runners finish as good as together. The inverse of the cumulative distribution needs one number,
but rounding moves the edges of all its tokens, and the many unlikely ones are narrower than that.

Draws that share a row and settings (the n choices that leave prefill together) share the distribution.

Shapes: N rows of logits, V vocabulary, P distributions, M draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from engine.batch import Draw
from engine.kernels.philox import exponentials
from engine.messages import Sampling

_BLOCK = 256  # tokens whose weights are summed as one
_COLDEST = 1e-5  # temperatures below it are greedy: the division would overflow
_LIKELIEST = 256  # top-p looks among so many tokens before it sorts a whole row


class Kind(NamedTuple):
    """What makes a distribution: a row of logits and the settings that shape it."""

    row: int
    temperature: float = 1.0
    min_p: float = 0.0
    top_k: int = 0
    top_p: float = 1.0


def draw(logits: torch.Tensor, rows: Sequence[int], draws: Sequence[Draw]) -> list[int]:
    """Draw one token for each of `draws`, the i-th from logits[rows[i]]; logits [N, V], any float dtype.

    Temperature below 1e-5 and top_k 1 take the highest score (of equals the lowest id). min-p, top-k and top-p
    look at the distribution at its temperature; top-k and top-p keep all equals at their edge; top-p is of what
    the others left.
    """
    tokens = [0] * len(draws)
    greedy = [i for i, d in enumerate(draws) if d.sampling.temperature < _COLDEST or d.sampling.top_k == 1]
    if greedy:
        best = logits.argmax(-1).tolist() if len(logits) <= len(greedy) else None
        picked = [best[rows[i]] for i in greedy] if best is not None else _argmax(logits, [rows[i] for i in greedy])
        for i, token in zip(greedy, picked, strict=True):
            tokens[i] = token
    if len(greedy) < len(draws):
        drawn = sorted(set(range(len(draws))).difference(greedy))
        for i, token in zip(drawn, _sample(logits, [rows[i] for i in drawn], [draws[i] for i in drawn]), strict=True):
            tokens[i] = token
    return tokens


def _argmax(logits: torch.Tensor, rows: Sequence[int]) -> list[int]:
    picked: list[int] = logits[torch.tensor(rows)].argmax(-1).tolist()
    return picked


def _sample(logits: torch.Tensor, rows: Sequence[int], draws: Sequence[Draw]) -> list[int]:
    kinds: dict[Kind, int] = {}  # -> distribution
    which = [kinds.setdefault(_kind(row, d.sampling), len(kinds)) for row, d in zip(rows, draws, strict=True)]
    weights = _weights(logits, list(kinds))  # [P, V rounded up to blocks]
    seeds = torch.tensor([d.seed for d in draws])
    positions = torch.tensor([d.position for d in draws])
    tokens: list[int] = _race(weights, torch.tensor(which), seeds, positions).tolist()
    return tokens


def _kind(row: int, sampling: Sampling) -> Kind:
    return Kind(row, sampling.temperature, sampling.min_p, sampling.top_k, sampling.top_p)


def _weights(logits: torch.Tensor, kinds: Sequence[Kind]) -> torch.Tensor:
    """exp((score - highest) / temperature) of each distribution, 0 for what min-p, top-k and top-p drop; float32."""
    rows = [kind.row for kind in kinds]
    scores = logits if rows == list(range(len(logits))) else logits.index_select(0, torch.tensor(rows))
    scores = scores.float()
    weights = scores - scores.amax(-1, keepdim=True)  # [P, V]
    if any(kind.temperature != 1 for kind in kinds):
        weights /= torch.tensor([kind.temperature for kind in kinds], dtype=torch.float32).unsqueeze(1)
    weights.exp_()
    cut = [i for i, kind in enumerate(kinds) if kind.min_p > 0 or kind.top_k > 0 or kind.top_p < 1]
    if cut:
        part = weights if len(cut) == len(kinds) else weights[cut]
        kept = part >= _lowest_kept(part, [kinds[i] for i in cut]).unsqueeze(1)
        weights[cut] = part * kept
    short = -weights.shape[1] % _BLOCK
    return F.pad(weights, (0, short)) if short else weights


def _lowest_kept(weights: torch.Tensor, kinds: Sequence[Kind]) -> torch.Tensor:
    """The lowest weight in each row [P, V] that min-p (0: off), top-k (0: off) and then top-p (1: off) leave; [P]."""
    vocabulary = weights.shape[1]
    lowest = torch.tensor([kind.min_p for kind in kinds], dtype=torch.float32)  # a row's highest weight is 1
    for_k = torch.tensor([kind.top_k if 0 < kind.top_k < vocabulary else 0 for kind in kinds])
    for_p = [i for i, kind in enumerate(kinds) if kind.top_p < 1]
    looked_at = min(max(int(for_k.max()), _LIKELIEST if for_p else 0), vocabulary)
    if not looked_at:
        return lowest
    highest = weights.topk(looked_at, dim=-1).values  # [P, looked_at], falling
    on = for_k > 0
    lowest[on] = torch.maximum(lowest[on], highest[on, for_k[on] - 1])
    if for_p:
        left = (weights[for_p] * (weights[for_p] >= lowest[for_p].unsqueeze(1))).sum(-1, dtype=torch.float64)
        needed = left * torch.tensor([kinds[i].top_p for i in for_p], dtype=torch.float64)  # [Pp], of the sum
        edge = _edge(highest[for_p], needed)
        for i in (edge < 0).nonzero().flatten().tolist():
            # A flat distribution: its likeliest few are not enough, so all are sorted.
            edge[i] = _edge(weights[for_p[i]].sort(descending=True).values[None], needed[i : i + 1]).clamp_(min=0)
        lowest[for_p] = torch.maximum(lowest[for_p], edge)
    return lowest


def _edge(falling: torch.Tensor, needed: torch.Tensor) -> torch.Tensor:
    """The weight at which the sums of falling weights [P, M] first reach `needed` [P]; -1 where they do not."""
    sums = falling.double().cumsum(-1)
    below = (sums < needed.unsqueeze(1)).sum(-1)  # [P]
    reached = below < falling.shape[1]
    at = below.clamp(max=falling.shape[1] - 1).unsqueeze(1)
    return torch.where(reached, falling.gather(1, at).squeeze(1), -1.0)


def _race(weights: torch.Tensor, which: torch.Tensor, seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Draw from distributions `which` [M] of weights [P, V] by the numbers of seeds and positions [M]; gives [M]."""
    blocks = weights.view(len(weights), -1, _BLOCK)  # [P, V / block, block]
    sums = blocks.sum(-1)[which]  # [M, V / block]
    block = (sums / exponentials(seeds, positions, sums.shape[1], stream=0)).argmax(-1)
    inside = blocks[which, block]  # [M, block]
    return block * _BLOCK + (inside / exponentials(seeds, positions, _BLOCK, stream=1)).argmax(-1)
