"""Whether a model can use the native backend here, and that backend."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import ClassVar, TypeGuard

import torch

from engine.attention.cache import KvCache
from engine.config import EngineConfig
from engine.errors import ConfigError
from engine.models.llama import Decoder
from engine.models.lora import TokensOf
from engine.models.model import Model
from engine.native.attention import NativeAttention, fits
from engine.native.build import LANES, Kernels, load_kernels
from engine.native.ops import NativeOps
from engine.native.products import NativePair, NativeProduct
from engine.native.stack import Stack
from engine.passes import Pass
from engine.token_layout import wanted

_log = logging.getLogger(__name__)


def compiled(config: EngineConfig, dtype: torch.dtype) -> Kernels | None:
    """Return the kernels for settings for which the native backend was chosen.

    None, with a warning, if the compiler cannot build them and the settings leave the kernels open. Raises ConfigError
    if the settings ask for the native ones.
    """
    try:
        return load_kernels(dtype)
    except ConfigError as error:
        if config.kernels == "native":
            raise
        _log.warning("%s; torch's kernels are used instead, which are slower", error)
        return None


def takes(model: Model, *, deterministic: bool) -> TypeGuard[Decoder]:
    """Whether the kernels support this model: it must be the engine's own decoder, with sizes of whole vectors.

    deterministic: in that mode they must compute every product: they add up each row in the same order,
    whatever rows run beside it.
    """
    if not isinstance(model, Decoder):
        return False
    spec = model.spec
    if spec.hidden % LANES or spec.intermediate % LANES or not fits(spec.attention):
        return False
    return not deterministic or all(isinstance(product, NativeProduct | NativePair) for product in model.products)


class NativeBackend:
    """Runs passes through one decoder, over its cache.

    rotations: each position's rotation, [positions, D / 2] complex64. deterministic: as for NativeAttention.
    """

    kernels: ClassVar = "native"

    def __init__(
        self, model: Decoder, cache: KvCache, kernels: Kernels, rotations: torch.Tensor, *, deterministic: bool = False
    ) -> None:
        self._model = model
        self._attention = NativeAttention(model.attention, cache, kernels, deterministic=deterministic)
        self._stack = Stack.of(model, self._attention, kernels)
        self._cache = cache
        self._kernels = kernels
        self._rotations = rotations

    def run(
        self, part: Pass, tokens: torch.Tensor, positions: torch.Tensor, adapted: Sequence[TokensOf]
    ) -> torch.Tensor:
        """Run a pass through all layers, like Model.run.

        Of tokens after which nothing is asked for, the last layer computes keys and values only: their rows of the
        residual stream hold nothing meaningful.
        """
        plan = self._attention.plan(part.batch, wanted(part.batch))
        ops = NativeOps(self._kernels, self._stack, self._attention, self._cache, plan, self._rotations[positions])
        return self._model.run(tokens, positions, ops, adapted)
