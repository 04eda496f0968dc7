"""What a model's folder says of its embeddings, and what the operator says in its place."""

from __future__ import annotations

import json
from math import hypot, isclose
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.errors import ModelError
from engine.server.preparing.pooling import Pooling, read_pooling

OLD = "sentence_transformers.models."
NEW = "sentence_transformers.sentence_transformer.modules.pooling."


def write(
    folder: Path, pooling: Any, *, stages: tuple[str, ...] = (OLD + "Transformer", OLD + "Pooling"), **files: Any
) -> EngineConfig:
    """A folder as sentence-transformers saves one; `files`: further JSON files by their names."""
    modules = [
        {"idx": number, "name": str(number), "path": f"{number}_{stage.rpartition('.')[2]}", "type": stage}
        for number, stage in enumerate(stages)
    ]
    for name, value in {"modules": modules, "1_Pooling/config": pooling, **files}.items():
        path = folder / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(value if isinstance(value, str) else json.dumps(value))
    return EngineConfig(str(folder))


MEAN = {"word_embedding_dimension": 48, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
LAST = {"word_embedding_dimension": 48, "pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True}


@pytest.mark.parametrize(("said", "kind"), [(MEAN, "mean"), (LAST, "last"), ({"pooling_mode": "mean"}, "mean")])
def test_the_folder_says_its_pooling(tmp_path: Path, said: dict[str, Any], kind: Any) -> None:
    assert read_pooling(write(tmp_path, said)) == Pooling(kind, normalized=False)


def test_the_folder_says_whether_vectors_have_length_1_and_how_long_a_text_may_be(tmp_path: Path) -> None:
    stages = (OLD + "Transformer", NEW + "Pooling", OLD + "Normalize")
    config = write(tmp_path, LAST, stages=stages, sentence_bert_config={"max_seq_length": 64})
    assert read_pooling(config) == Pooling("last", normalized=True, longest=64)


@pytest.mark.parametrize(
    ("config", "lengths"),
    [
        ({"hidden_size": 48}, []),
        ({"hidden_size": 48, "is_matryoshka": True}, list(range(1, 49))),
        ({"hidden_size": 48, "matryoshka_dimensions": [8, 16]}, [8, 16]),
        ({"hidden_size": 48, "matryoshka_dimensions": [[8], None, 16]}, [16]),
    ],
)
def test_the_folder_says_to_which_lengths_vectors_may_be_cut(tmp_path: Path, config: Any, lengths: list[int]) -> None:
    pooling = read_pooling(write(tmp_path, MEAN, config=config))
    assert pooling is not None
    assert sorted(pooling.lengths) == lengths


def test_who_says_nothing_gives_no_embeddings_unless_told_to(tmp_path: Path) -> None:
    assert read_pooling(EngineConfig(str(tmp_path))) is None
    assert read_pooling(EngineConfig(str(tmp_path / "model.gguf"))) is None
    assert read_pooling(EngineConfig(str(tmp_path), pooling="last")) == Pooling("last")
    assert read_pooling(EngineConfig(str(tmp_path / "model.gguf"), pooling="mean")) == Pooling("mean")


def test_the_operators_word_goes_before_the_folders(tmp_path: Path) -> None:
    write(tmp_path, MEAN, stages=(OLD + "Transformer", OLD + "Pooling", OLD + "Dense"))
    assert read_pooling(EngineConfig(str(tmp_path), pooling="last")) == Pooling("last")


@pytest.mark.parametrize(
    ("pooling", "stages", "why"),
    [
        (MEAN, ("Transformer", "Pooling", "Dense"), "asks for 'dense'"),
        (MEAN, ("Transformer",), "defines no pooling"),
        ({"pooling_mode_cls_token": True}, ("Transformer", "Pooling"), r"\['cls_token'\]"),
        ({**MEAN, "pooling_mode_lasttoken": True}, ("Transformer", "Pooling"), "mean_tokens', 'lasttoken"),
        ({}, ("Transformer", "Pooling"), r"\[\]"),
        ("[]", ("Transformer", "Pooling"), "does not contain an object"),
        ("{", ("Transformer", "Pooling"), "cannot be read"),
        ("[" * 100_000, ("Transformer", "Pooling"), "cannot be read"),
    ],
)
def test_what_is_not_built_is_refused(tmp_path: Path, pooling: Any, stages: tuple[str, ...], why: str) -> None:
    with pytest.raises(ModelError, match=why):
        read_pooling(write(tmp_path, pooling, stages=tuple(OLD + stage for stage in stages)))


def test_a_vector_is_cut_and_brought_to_length_1() -> None:
    vector = (3.0, 4.0, 12.0)
    assert Pooling("mean", normalized=False).finish(vector) == vector
    assert Pooling("mean").finish(vector) == (3 / 13, 4 / 13, 12 / 13)
    cut = Pooling("mean", normalized=False).finish(vector, 2)
    assert cut == (0.6, 0.8)
    assert isclose(hypot(*cut), 1)
    assert Pooling("mean").finish((0.0, 0.0)) == (0.0, 0.0)
