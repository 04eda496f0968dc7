"""The peers: torch's attention, and transformers' two ways to answer one prompt n times. No engine code is used."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

from bench.gpu.clocks import Call

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_BACKENDS = (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION)


def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool) -> dict[str, Call]:
    """Return attention of q [B, Q, T, D] over k, v [B, K, S, D], by each of torch's kernels that accepts it."""

    def call(backend: SDPBackend) -> Call:
        def run() -> torch.Tensor:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

        return run

    taken: dict[str, Call] = {}
    for backend in _BACKENDS:
        one = call(backend)
        try:
            with warnings.catch_warnings(action="ignore"):  # torch warns why a kernel does not accept it
                one()
        except RuntimeError:
            continue
        taken[backend.name.lower()] = one
    return taken


def flex(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, compiled: bool) -> Call:
    """Return a call of FlexAttention: q [B, Q, T, D] over all of k, v [B, K, S, D]."""
    run: Any = torch.compile(flex_attention, dynamic=False) if compiled else flex_attention
    return lambda: run(q, k, v, enable_gqa=True)


def generate(model: PreTrainedModel, prompt: Sequence[int], n: int, new: int) -> int:
    """Draw n choices of `new` tokens with transformers' generate; return the number of drawn tokens."""
    ids = torch.tensor([list(prompt)], device=model.device)
    out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=_settings(n, new))
    return int(out.shape[0] * (out.shape[1] - len(prompt)))


def batching(model: PreTrainedModel, prompt: Sequence[int], n: int, new: int, blocks: int | None = None) -> int:
    """Do the same with transformers' continuous batching, which forks the prompt's blocks; its manager is kept.

    blocks: blocks of its cache, and the tokens of a batch; None lets it decide by the device's memory.
    """
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    answers = model.generate_batch(
        [list(prompt)],
        generation_config=_settings(n, new),
        continuous_batching_config=ContinuousBatchingConfig(num_blocks=blocks, max_batch_tokens=blocks),
        persistent_manager=True,
    )
    errors = [answer.error for answer in answers.values() if answer.error]
    if errors:
        raise RuntimeError(f"continuous batching: {errors[0]}")
    drawn = [len(answer.generated_tokens) for answer in answers.values()]
    # transformers 5.17 waits for all n answers but returns only the first.
    return sum(drawn) if len(drawn) == n else n * drawn[0]


def end_batching(model: PreTrainedModel) -> None:
    """Free what continuous batching holds."""
    model.destroy_cached_continuous_batching_manager()


def _settings(n: int, new: int) -> Any:
    from transformers import GenerationConfig

    return GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        num_return_sequences=n,
        max_new_tokens=new,
        eos_token_id=-1,
        pad_token_id=0,
    )
