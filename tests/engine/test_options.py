"""The words of `python -m engine`: each setting of the engine has its own, and keeps its default without it."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineConfig
from engine.errors import ConfigError, ModelError
from engine.options import argument_parser, engine_config, parse_arguments

INTERNAL = {"model", "share_gate"}

WORDS: dict[str, tuple[list[str], Any]] = {
    "adapters": (["--lora", "a=/x", "--lora", "b=/y"], (("a", "/x"), ("b", "/y"))),
    "block_size": (["--block-size", "8"], 8),
    "cuda_graphs": (["--no-cuda-graphs"], False),
    "deterministic": (["--deterministic"], True),
    "device": (["--device", "cpu"], "cpu"),
    "dtype": (["--dtype", "float32"], "float32"),
    "kernels": (["--kernels", "torch"], "torch"),
    "kv_fraction": (["--kv-fraction", "0.5"], 0.5),
    "max_batch_tokens": (["--max-batch-tokens", "4096"], 4096),
    "max_logprobs": (["--max-logprobs", "0"], 0),
    "max_model_len": (["--max-model-len", "99"], 99),
    "max_queue": (["--max-queue", "0"], 0),
    "max_response_bytes": (["--max-response-bytes", "7"], 7),
    "max_responses": (["--max-responses", "0"], 0),
    "max_sequences": (["--max-sequences", "3"], 3),
    "num_blocks": (["--num-blocks", "5"], 5),
    "pooling": (["--pooling", "last"], "last"),
    "prefix_cache": (["--no-prefix-cache"], False),
    "quantization": (["--quantization", "int8"], "int8"),
    "reasoning_parser": (["--reasoning-parser", "none"], "none"),
    "seed": (["--seed", "0"], 0),
    "served_model_name": (["--served-model-name", "x"], "x"),
    "tool_parser": (["--tool-parser", "hermes"], "hermes"),
}


def config(folder: Path, *words: str) -> EngineConfig:
    return engine_config(parse_arguments([str(folder), *words])[1])


def test_without_words_all_is_as_the_engine_has_it(tmp_path: Path) -> None:
    assert config(tmp_path) == EngineConfig(str(tmp_path))


def test_every_setting_has_a_word() -> None:
    assert set(WORDS) == {field.name for field in fields(EngineConfig)} - INTERNAL


@pytest.mark.parametrize("name", WORDS)
def test_each_word_sets_its_own_and_nothing_else(tmp_path: Path, name: str) -> None:
    words, value = WORDS[name]
    assert config(tmp_path, *words) == EngineConfig(str(tmp_path), **{name: value})
    assert getattr(config(tmp_path, *words), name) == value != getattr(EngineConfig(""), name)


def test_every_word_is_explained() -> None:
    assert all(action.help for action in argument_parser()._actions)


def test_how_the_server_is_reached(tmp_path: Path) -> None:
    options, _ = parse_arguments([str(tmp_path), "--uds", "/s", "--port", "0", "--stall-seconds", "2.5"])
    assert (options.uds, options.host, options.port, options.stall_seconds) == (Path("/s"), "127.0.0.1", 0, 2.5)
    assert not options.exit_with_stdin


@pytest.mark.parametrize(
    "words", [["--lora", "a"], ["--stall-seconds", "0"], ["--num-blocks", "1", "--kv-fraction", "0.1"], ["--colour"]]
)
def test_wrong_words_end_with_2(tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_arguments([str(tmp_path), *words])
    assert ended.value.code == 2
    assert words[0] in capsys.readouterr().err


def test_wrong_settings_and_models_are_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_queue must not be negative"):
        config(tmp_path, "--max-queue", "-1")
    with pytest.raises(ModelError, match="no such file or folder"):
        config(tmp_path / "nowhere")
    (tmp_path / "a.bin").touch()
    with pytest.raises(ModelError, match=r"neither a folder nor a \.gguf file"):
        config(tmp_path / "a.bin")
