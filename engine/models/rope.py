"""Rotary position embedding: the angles of a model, and the rotation as one complex product.

Queries and keys are kept with the two halves of a head interleaved (element 2i is Hugging Face's i, 2i+1 its i +
head_dim/2), so that a pair is one complex number. Scores do not depend on the order of a head's elements if queries and
keys share it.
"""

from __future__ import annotations

import math

import torch

from engine.models.spec import LinearScaling, Llama3Scaling, ModelSpec


def frequencies(spec: ModelSpec, factors: torch.Tensor | None = None) -> torch.Tensor:
    """Return the angle per position of each pair, [head_dim / 2], float32, computed in the same order as in
    transformers.

    factors: divisors from a GGUF file (rope_freqs), which already are the whole of a llama3 scaling.
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
    """Apply Llama 3.1's scaling like its reference code (llama-models, `apply_scaling`)."""
    wavelength = 2 * math.pi / inverse
    longest = scaling.original_context / scaling.low_freq_factor
    shortest = scaling.original_context / scaling.high_freq_factor
    ramp = (scaling.original_context / wavelength - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    between = (1 - ramp) * inverse / scaling.factor + ramp * inverse
    scaled = torch.where(wavelength > longest, inverse / scaling.factor, between)
    return torch.where(wavelength < shortest, inverse, scaled)


def cosines_and_sines(inverse: torch.Tensor, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines for positions 0 .. positions - 1, [positions, head_dim / 2] float32 each."""
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), inverse)
    return angles.cos(), angles.sin()


def rotations(inverse: torch.Tensor, positions: int) -> torch.Tensor:
    """Return unit complex numbers for positions 0 .. positions - 1, [positions, head_dim / 2], complex64."""
    return torch.complex(*cosines_and_sines(inverse, positions))


def interleave(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder rows (dimension 0: heads x head_dim) from Hugging Face's order of a head to the interleaved one."""
    shaped = rows.view(heads, 2, rows.shape[0] // heads // 2, -1)  # [heads, half, pair, ...]
    return shaped.transpose(1, 2).reshape(rows.shape)


def rotate_(heads: torch.Tensor, rotation: torch.Tensor) -> None:
    """Rotate queries or keys in place: heads [tokens, heads, head_dim], rotation [tokens, 1, head_dim / 2].

    Computed in float32 whatever the dtype of `heads`, and rounded once.
    """
    pairs = heads.float().view(*heads.shape[:-1], -1, 2)  # float() returns the tensor itself if it is float32
    torch.view_as_complex(pairs).mul_(rotation)
    if heads.dtype != torch.float32:
        heads.copy_(pairs.flatten(-2))
