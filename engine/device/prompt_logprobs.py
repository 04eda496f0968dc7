"""Log probabilities of a prompt's own tokens: computed a slice of positions at a time, collected with the
step's result.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.device.transfer import Fetched
from engine.kernels.logprob_rank import logprob_rank
from engine.messages import Logprobs
from engine.models.model import Model
from engine.sampling.highest import highest

_SLICE = 1 << 25  # logits computed at once: 128 MB in float32


@dataclass(frozen=True, slots=True)
class _Slice:
    """For n positions: own log probability, rank, the ids of the K likeliest tokens and theirs, as int32
    [n, 2 + 2 * K].
    """

    packed: Fetched
    count: int

    def collect(self) -> list[Logprobs]:
        packed = self.packed.tensor()
        values = packed.view(torch.float32)
        tops = zip(packed[:, 2 : 2 + self.count].tolist(), values[:, 2 + self.count :].tolist(), strict=True)
        return [
            Logprobs(own, rank, tuple(zip(ids, logs, strict=True)))
            for own, rank, (ids, logs) in zip(values[:, 0].tolist(), packed[:, 1].tolist(), tops, strict=True)
        ]


class PromptLogprobs:
    """Log probabilities of a chunk's following tokens, perhaps still being computed."""

    def __init__(
        self,
        x: torch.Tensor,
        followers: torch.Tensor,
        count: int,
        model: Model,
    ) -> None:
        """followers [n] int32 are the tokens after the positions x [n, H] of Model.run; `count` of the likeliest are
        returned.
        """
        size = max(_SLICE // model.vocab, 1)
        self._slices = [
            _slice(model.logits(some), after, min(count, model.vocab))
            for some, after in zip(torch.split(x, size), torch.split(followers, size), strict=True)
        ]

    def collect(self) -> tuple[Logprobs, ...]:
        """Wait for them and return them."""
        return tuple([one for each in self._slices for one in each.collect()])


def _slice(logits: torch.Tensor, followers: torch.Tensor, count: int) -> _Slice:
    places = torch.arange(len(followers), device=logits.device)
    own = torch.empty(len(followers), device=logits.device)
    rank = torch.empty_like(followers)
    top, log = logprob_rank(logits, torch.stack((places, places), 1), followers, own, rank)
    packed = [own.view(torch.int32).unsqueeze(1), rank.unsqueeze(1)]
    if count:
        scores = logits.float()
        ids = highest(scores, count)
        logs = scores.gather(1, ids) - top.unsqueeze(1) - log.unsqueeze(1)
        packed += [ids.int(), logs.view(torch.int32)]
    return _Slice(Fetched(torch.cat(packed, 1)), count)
