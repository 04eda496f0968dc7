"""How a model's hidden states become one vector: what its folder says, or the operator.

A folder made with sentence-transformers lists its stages in modules.json and has the pooling in the folder of that
stage. A plain chat model says nothing, and makes no embeddings unless the operator sets a pooling.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import hypot
from pathlib import Path
from typing import Any, Literal

from engine.config import EngineConfig
from engine.errors import ModelError
from engine.json_files import read_list, read_object

Kind = Literal["mean", "last"]

_KINDS: Mapping[str, Kind] = {"mean": "mean", "mean_tokens": "mean", "lasttoken": "last"}
_FLAG = "pooling_mode_"
_STAGES = {"transformer", "pooling", "normalize"}


@dataclass(frozen=True, slots=True)
class Pooling:
    """How vectors are made.

    kind: the mean of all tokens' hidden states, or the last token's alone. normalized: to length 1. longest: the most
    tokens of a text, if that is less than the context. lengths: to which a vector may be cut, for models whose vectors'
    beginnings are vectors too (Matryoshka).
    """

    kind: Kind
    normalized: bool = True
    longest: int | None = None
    lengths: Collection[int] = ()

    def finish(self, vector: tuple[float, ...], dimensions: int | None = None) -> tuple[float, ...]:
        """Return the vector for the client; one that was cut has length 1 in any case."""
        if dimensions is not None:
            vector = vector[:dimensions]
        if not self.normalized and dimensions is None:
            return vector
        length = hypot(*vector) or 1.0
        return tuple([value / length for value in vector])


def read_pooling(config: EngineConfig) -> Pooling | None:
    """Return the pooling of the configured model; None if neither the folder nor the operator defines one.

    Raises ModelError if the folder asks for stages that are not supported, unless the operator has set a pooling.
    """
    folder = Path(config.model)
    if not folder.is_dir():
        return None if config.pooling is None else Pooling(config.pooling)
    lengths = _lengths(read_object(folder / "config.json", optional=True))
    if config.pooling is not None:
        return Pooling(config.pooling, lengths=lengths)
    stages = {
        _stage(entry): entry for entry in read_list(folder / "modules.json", optional=True) if isinstance(entry, dict)
    }
    if not stages:
        return None
    if others := stages.keys() - _STAGES:
        raise ModelError(f"{folder / 'modules.json'} asks for '{min(others)}', which is not supported")
    if "pooling" not in stages:
        raise ModelError(f"{folder / 'modules.json'} defines no pooling")
    longest = read_object(folder / "sentence_bert_config.json", optional=True).get("max_seq_length")
    return Pooling(
        _kind(folder / str(stages["pooling"].get("path")) / "config.json"),
        normalized="normalize" in stages,
        longest=longest if isinstance(longest, int) else None,
        lengths=lengths,
    )


def _stage(entry: Mapping[str, Any]) -> str:
    """Return a stage's class, whatever package this release of sentence-transformers keeps it in."""
    return str(entry.get("type")).rpartition(".")[2].lower()


def _kind(path: Path) -> Kind:
    """Return the one pooling that is switched on, by its name or by its flag."""
    config = read_object(path, optional=True)
    modes = [name.removeprefix(_FLAG) for name, on in config.items() if name.startswith(_FLAG) and on is True]
    if isinstance(config.get("pooling_mode"), str):
        modes = [config["pooling_mode"]]
    if len(modes) != 1 or modes[0] not in _KINDS:
        raise ModelError(f"{path} asks for the pooling {modes}; there are mean and lasttoken")
    return _KINDS[modes[0]]


def _lengths(config: Mapping[str, Any]) -> Collection[int]:
    """Return the lengths that a vector may be cut to: those that config.json lists, or any if it only
    allows cutting.
    """
    listed, size = config.get("matryoshka_dimensions"), config.get("hidden_size")
    if isinstance(listed, list):
        return frozenset([length for length in listed if isinstance(length, int)])
    return range(1, size + 1) if config.get("is_matryoshka") is True and isinstance(size, int) else ()
