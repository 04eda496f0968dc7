"""Rotary position embedding: the angles of a model, and the rotation as one complex product.

Queries and keys are held with the two halves of a head interleaved (element 2i is Hugging Face's i,
2i+1 its i + head_dim/2), so that a pair is one complex number. Scores do not change by an order that
queries and keys share.
"""

from __future__ import annotations

import math

import torch

from engine.models.spec import LinearScaling, Llama3Scaling, ModelSpec


def frequencies(spec: ModelSpec, factors: torch.Tensor | None = None) -> torch.Tensor:
    """Angle per position of each pair, [head_dim / 2], float32, computed in the order that transformers computes it.

    factors: divisors that a GGUF brings along (rope_freqs), already the whole of a llama3 scaling.
    """
    exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.int64).float() / spec.head_dim
    inverse = 1.0 / (spec.rope_theta**exponents)
    if factors is not None:
        inverse = inverse / factors
    match spec.scaling:
        case None:
            return inverse
        case LinearScaling(factor):
            return inverse / factor
        case Llama3Scaling():
            return _llama3(inverse, spec.scaling)


def _llama3(inverse: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    """Llama 3.1's scaling as its reference code has it (llama-models, `apply_scaling`)."""
    wavelength = 2 * math.pi / inverse
    longest = scaling.original_context / scaling.low_freq_factor
    shortest = scaling.original_context / scaling.high_freq_factor
    ramp = (scaling.original_context / wavelength - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    between = (1 - ramp) * inverse / scaling.factor + ramp * inverse
    scaled = torch.where(wavelength > longest, inverse / scaling.factor, between)
    return torch.where(wavelength < shortest, inverse, scaled)


def turns(inverse: torch.Tensor, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines for positions 0 .. positions - 1, [positions, head_dim / 2] float32 each."""
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), inverse)
    return angles.cos(), angles.sin()


def rotations(inverse: torch.Tensor, positions: int) -> torch.Tensor:
    """Unit complex numbers for positions 0 .. positions - 1, [positions, head_dim / 2], complex64."""
    return torch.complex(*turns(inverse, positions))


def interleave(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Bring rows (dimension 0: heads x head_dim) from Hugging Face's order of a head into the interleaved one."""
    shaped = rows.view(heads, 2, rows.shape[0] // heads // 2, -1)  # [heads, half, pair, ...]
    return shaped.transpose(1, 2).reshape(rows.shape)


def rotate_(heads: torch.Tensor, turn: torch.Tensor) -> None:
    """Rotate queries or keys in place: heads [tokens, heads, head_dim], turn [tokens, 1, head_dim / 2].

    Computed in float32 whatever the dtype of `heads`, and rounded once.
    """
    pairs = heads.float().view(*heads.shape[:-1], -1, 2)  # float() gives the tensor itself in float32
    torch.view_as_complex(pairs).mul_(turn)
    if heads.dtype != torch.float32:
        heads.copy_(pairs.flatten(-2))
