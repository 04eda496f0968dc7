"""The interface of a loaded model to the runner, whichever class computes it."""

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
    """Weights that T tokens of any sequences run through together; only attention knows which tokens see each other."""

    @property
    def vocab(self) -> int:
        """The size of the vocabulary, in tokens."""
        ...

    @property
    def context(self) -> int:
        """The longest sequence that may run, in tokens."""
        ...

    @property
    def eos(self) -> frozenset[int]:
        """The ids that end an answer."""
        ...

    @property
    def attention(self) -> tuple[AttentionSpec, ...]:
        """Each layer's attention, in the order in which the layers run."""
        ...

    @property
    def frequencies(self) -> torch.Tensor | None:
        """The angle per position of each pair of a head, [D / 2] float32; None if the model rotates by itself."""
        ...

    @property
    def steady(self) -> bool:
        """Whether the launched work depends only on the number of tokens, so that it can be recorded and replayed."""
        ...

    def adapt(self, name: str, pairs: Mapping[str, Pair]) -> None:
        """Add an adapter: pairs by names of modules. Raises ModelError if one does not fit the model."""
        ...

    def run(
        self, tokens: torch.Tensor, positions: torch.Tensor, ops: Ops, adapted: Sequence[TokensOf] = ()
    ) -> torch.Tensor:
        """Run tokens [T] at positions [T] (int64), those of `ops`, through all layers; return [T, H] for `hidden` and
        `logits`.
        """
        ...

    def hidden(self, x: torch.Tensor) -> torch.Tensor:
        """Return the last hidden states, after the final norm, of some tokens: x [N, H] of `run` -> [N, H]."""
        ...

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits after some tokens: x [N, H] of `run` -> [N, V]."""
        ...


def sequence_limit(asked: int | None, made_for: int, longest: int) -> int:
    """Return the longest sequence that will run: what the settings ask for, or what the model was made for.

    longest: what the settings may ask for; raises ConfigError if they ask for more.
    """
    if asked is not None and asked > longest:
        raise ConfigError(f"max_model_len is {asked}; the model supports {longest} tokens")
    return asked or made_for
