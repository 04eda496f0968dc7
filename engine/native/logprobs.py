"""Log probabilities in C, like those of sampling/logprobs.py up to rounding, without a copy of the logits in floats."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.messages import Logprobs
from engine.native.build import Kernels
from engine.sampling.logprobs import Score, logprobs


def log_probabilities(kernels: Kernels) -> Score:
    """Return a function like `logprobs` of sampling/logprobs.py, which does it if the dtype is not the kernels'."""

    def scored(logits: torch.Tensor, wanted: Sequence[tuple[int, int, int]]) -> list[Logprobs]:
        if logits.dtype not in (torch.float32, kernels.dtype):
            return logprobs(logits, wanted)
        logits = logits.contiguous()
        asked = [min(count, logits.shape[1]) for *_, count in wanted]
        likeliest = max(asked)
        whole = torch.tensor([[row for row, *_ in wanted], [token for _, token, _ in wanted]])
        own, ranks = torch.empty(len(wanted), dtype=torch.float32), torch.empty(len(wanted), dtype=torch.int64)
        ids = torch.empty(len(wanted), likeliest, dtype=torch.int64)
        values = torch.empty(len(wanted), likeliest, dtype=torch.float32)
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

    return scored
