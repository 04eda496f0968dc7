"""What a loaded model is to the runner, whoever computes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from engine.errors import ConfigError
from engine.models.lora import Pair, TokensOf
from engine.models.ops import Ops
from engine.models.spec import AttentionSpec

CPU = torch.device("cpu")


class Model(Protocol):
    """Weights that T tokens of any sequences run through together; attention alone knows who sees whom."""

    @property
    def vocab(self) -> int:
        """Size of the vocabulary, in tokens."""
        ...

    @property
    def context(self) -> int:
        """The longest sequence that may run, in tokens."""
        ...

    @property
    def eos(self) -> frozenset[int]:
        """Ids that end an answer."""
        ...

    @property
    def attention(self) -> tuple[AttentionSpec, ...]:
        """What each layer's attention is; they attend in this order."""
        ...

    @property
    def frequencies(self) -> torch.Tensor | None:
        """The angle per position of each pair of a head, [D / 2] float32; None where the model rotates for itself."""
        ...

    @property
    def steady(self) -> bool:
        """Whether so many tokens launch the same work whatever they are, so that it can be recorded and replayed."""
        ...

    def adapt(self, name: str, pairs: Mapping[str, Pair]) -> None:
        """Take in an adapter: pairs by names of modules; raises ModelError where one does not fit the model."""
        ...

    def run(
        self, tokens: torch.Tensor, positions: torch.Tensor, ops: Ops, adapted: Sequence[TokensOf] = ()
    ) -> torch.Tensor:
        """Run tokens [T] at positions [T] (int64), those of `ops`, through all layers; gives [T, H], for the others."""
        ...

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        """The last hidden states, after the final norm, of some tokens: x [N, H] of `run` -> [N, H]."""
        ...

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Scores of the vocabulary after some tokens: x [N, H] of `run` -> [N, V]."""
        ...


def sequence_limit(asked: int | None, made_for: int) -> int:
    """The longest sequence that will run: what the settings ask for, or what the model was made for.

    Raises ConfigError where more is asked for.
    """
    if asked is not None and asked > made_for:
        raise ConfigError(f"max_model_len is {asked}; the model supports {made_for} tokens")
    return asked or made_for
