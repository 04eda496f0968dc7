"""Log probabilities in C, like those of sampling/logprobs.py up to rounding, without a copy of the logits in floats."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.messages import Logprobs
from engine.native.build import Kernels
from engine.sampling.logprobs import Score, logprobs

MOST = 256
"""The most of the likeliest tokens that are found in C: sorting them as they come takes time in proportion to it."""


def log_probabilities(kernels: Kernels) -> Score:
    """Return a function like `logprobs` of sampling/logprobs.py, which does what C does not: other dtypes than float32
    and the kernels', and more than MOST of the likeliest tokens. It raises IndexError for a token that does not exist.
    """

    def scored(logits: torch.Tensor, wanted: Sequence[tuple[int, int, int]]) -> list[Logprobs]:
        known = logits.dtype in (torch.float32, kernels.dtype)
        here = [i for i, (*_, count) in enumerate(wanted) if known and count <= MOST]
        there = sorted(set(range(len(wanted))).difference(here))
        found = dict(zip(here, _scored(kernels, logits, [wanted[i] for i in here]), strict=True)) if here else {}
        if there:
            found |= zip(there, logprobs(logits, [wanted[i] for i in there]), strict=True)
        return [found[i] for i in range(len(wanted))]

    return scored


def _scored(kernels: Kernels, logits: torch.Tensor, wanted: Sequence[tuple[int, int, int]]) -> list[Logprobs]:
    if max([token for _, token, _ in wanted]) >= logits.shape[1]:
        raise IndexError("a token is not in the vocabulary")
    logits = logits.contiguous()
    asked = [min(count, logits.shape[1]) for *_, count in wanted]
    likeliest = max(asked)
    whole = torch.tensor([[row for row, *_ in wanted], [token for _, token, _ in wanted]])
    own, ranks = torch.empty(len(wanted), dtype=torch.float32), torch.empty(len(wanted), dtype=torch.int64)
    ids = torch.zeros(len(wanted), likeliest, dtype=torch.int64)  # stays so if too many scores are NaN
    values = torch.zeros(len(wanted), likeliest, dtype=torch.float32)
    kernels.log_probabilities(
        logits.data_ptr(),
        logits.dtype == torch.float32,
        whole.data_ptr(),
        own.data_ptr(),
        ranks.data_ptr(),
        ids.data_ptr(),
        values.data_ptr(),
        len(wanted),
        logits.shape[1],
        likeliest,
    )
    if not ranks.all():
        raise MemoryError("there is not enough memory for the maxima of a vocabulary")
    found = zip(own.tolist(), ranks.tolist(), ids.tolist(), values.tolist(), asked, strict=True)
    return [
        Logprobs(value, rank, tuple(zip(best[:count], theirs[:count], strict=True)))
        for value, rank, best, theirs, count in found
    ]
