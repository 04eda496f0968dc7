"""The engine on the native backend gives the same results as on torch's, and uses it when it should."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType

from engine.attention.torch_backend import TorchBackend
from engine.backends import Machine
from engine.batch import Batch, Chunk, Draw, Row
from engine.config import EngineConfig
from engine.cpu_runner import CpuRunner
from engine.errors import ConfigError
from engine.kv_spans import plan_kv_spans
from engine.messages import Add, Embed, Sampling
from engine.models import quantized
from engine.native.backend import NativeBackend
from engine.native.build import BYTES, HALVES, NIBBLES, load_kernels
from engine.native.products import NativeProducts
from engine.native.stack import Stack
from engine.passes import Pass
from tests.engine.device.running import SIZES, adapter, config, group, run, same, write
from tests.fakes.tiny_gguf import write_gguf
from tests.fakes.tiny_models import make

TRAFFIC: list[Add | Embed] = [
    replace(group(1, 30, 4, 4, 100), logprobs=3),
    group(2, 9, 1, 5, 200, Sampling(temperature=0.7, top_p=0.9, repetition_penalty=1.3, logit_bias=((7, 2.0),))),
    replace(group(3, 30, 1, 1, 0), prompt_logprobs=2),
    Embed(4, group(0, 11, 1, 1, 0).prompt, "mean"),
]


def loaded(settings: EngineConfig) -> CpuRunner:
    runner = CpuRunner.load(settings)
    assert isinstance(runner._backend, NativeBackend)
    return runner


def stack_of(runner: CpuRunner) -> Stack | None:
    """What computes all layers in one call, if that can be."""
    assert isinstance(runner._backend, NativeBackend)
    return runner._backend._stack


here = Machine.here()


def compare(settings: EngineConfig, adds: list[Add | Embed]) -> None:
    mine, stats = run(loaded(settings), settings, adds)
    plain = replace(settings, kernels="torch")
    theirs, others = run(CpuRunner.load(plain), plain, adds)
    same(mine, theirs)
    assert replace(stats, kv_bytes_read=0) == replace(others, kv_bytes_read=0)


KINDS = ["llama", "qwen3", "qwen2", "smollm3", "mistral"]
WHOLE: dict[str, Any] = {"hidden_size": 64}  # a multiple of the panel width: one call computes all layers


def sizes_of(kind: str) -> dict[str, Any]:
    return {"sliding_window": 8} if kind == "mistral" else {}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at_once", [False, True], ids=["by step", "at once"])
def test_tokens_and_log_probabilities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, at_once: bool
) -> None:
    """Chunks, forks, seeds, truncation, edits, hidden states; heads with norm, bias, window, or without rotation."""
    if not at_once:
        monkeypatch.setattr(Stack, "of", lambda *_: None)
    compare(config(write(tmp_path, kind, **sizes_of(kind), **WHOLE)), TRAFFIC)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("numbers", [{"dtype": "float32"}, {"dtype": "bfloat16"}, {"quantization": "int8"}], ids=str)
def test_layers_at_once_are_layers_by_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, numbers: dict[str, str]
) -> None:
    """Equal bit for bit, since both use the same functions."""
    settings = config(write(tmp_path, kind, **sizes_of(kind), **WHOLE), **numbers)
    with monkeypatch.context() as patch:
        patch.setattr(Machine, "here", lambda: replace(here, cpu_bfloat16=False))
        at_once = loaded(settings)
        patch.setattr(Stack, "of", lambda *_: None)
        by_step = loaded(settings)
    knows = load_kernels(at_once._cache.dtype)
    assert (stack_of(at_once) is not None) == (knows.together > 0 if "quantization" in numbers else knows.wide)
    assert run(at_once, settings, TRAFFIC) == run(by_step, settings, TRAFFIC)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("numbers", [{"dtype": "float32"}, {"dtype": "bfloat16"}, {"quantization": "int8"}], ids=str)
def test_the_last_layer_computes_what_is_asked_for(tmp_path: Path, kind: str, numbers: dict[str, str]) -> None:
    """After a chunk's last token and after a row, and the same bits as if after all tokens; of a chunk that does not
    end its prompt, only keys and values.
    """
    runner = loaded(config(write(tmp_path, kind, **sizes_of(kind), **WHOLE), **numbers))
    first, second = tuple(range(5, 45)), tuple(range(45, 65))
    row = Row(2, 7, 0, (20,), Draw(2, 2, 1, Sampling()))
    draws = (Draw(1, 1, 60, Sampling()),)
    spans = plan_kv_spans([row], runner._cache.block_size, gate=32)

    def after(asked: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the residual streams after two chunks of one prompt, the second beside a row, and the cache."""
        wish = replace(Chunk(1, first, 0, tuple(range(20))), pooling="mean" if asked else None)
        begun = runner._forward(Pass(Batch(chunks=(wish,)), ()))
        wish = replace(wish, tokens=second, start=len(first), draws=draws)
        ended = runner._forward(Pass(Batch((), (wish,), (row,), spans), (row,)))
        return begun, ended, torch.stack([runner._cache.view(layer) for layer in range(len(runner._model.attention))])

    every, some = after(asked=True), after(asked=False)
    assert torch.equal(every[2], some[2])
    assert torch.equal(every[1][-2:], some[1][-2:])
    if stack_of(runner) is not None:
        assert all(not torch.equal(one, other) for one, other in zip(every[0], some[0], strict=True))
        assert all(not torch.equal(one, other) for one, other in zip(every[1][:-2], some[1][:-2], strict=True))


def test_layers_at_once_say_what_their_parts_took(tmp_path: Path) -> None:
    settings = config(write(tmp_path, **WHOLE))
    runner = loaded(settings)
    timings = load_kernels(runner._cache.dtype).timings
    before = timings.products, timings.attention, timings.rest
    began = time.perf_counter()
    run(runner, settings, TRAFFIC)
    took = time.perf_counter() - began
    parts = [now - then for now, then in zip((timings.products, timings.attention, timings.rest), before, strict=True)]
    assert min(parts) > 0
    assert sum(parts) < took


def test_preemption_and_the_prefix_cache(tmp_path: Path) -> None:
    compare(config(write(tmp_path), num_blocks=8), [group(1, 14, 3, 5, 100), group(2, 14, 1, 4, 300)])


def test_int8(tmp_path: Path) -> None:
    compare(config(write(tmp_path), quantization="int8"), TRAFFIC)


@pytest.mark.parametrize("knows", [True, False])
def test_int8_where_torchs_products_are_not_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, knows: bool) -> None:
    """The kernels' products are exact: int8 is refused only if it is left to torch."""
    monkeypatch.setattr(quantized, "adds_up_exactly", lambda: False)
    settings = config(write(tmp_path, **WHOLE, vocab_size=320), quantization="int8")
    if knows and load_kernels(torch.float32).together:
        assert stack_of(loaded(settings)) is not None
    else:
        monkeypatch.setattr(load_kernels(torch.float32), "together", 0)
        with pytest.raises(ConfigError, match="quantization is int8, which needs a CPU"):
            CpuRunner.load(settings)


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "BF16"])
def test_a_file_of_few_bits_stays_so(tmp_path: Path, kind: str) -> None:
    """The quantized weights stay quantized, and give what the same weights as floats give, bit for bit."""
    model = make("llama", **(SIZES | WHOLE | {"intermediate_size": 128, "tie_word_embeddings": True}))
    write_gguf(path := tmp_path / "model.gguf", model, "llama", GGMLQuantizationType[kind])
    settings = config(path)
    mine = loaded(settings)
    kinds = {"Q4_1": NIBBLES, "Q8_0": BYTES, "BF16": HALVES}
    if load_kernels(torch.float32).narrow:
        assert stack_of(mine) is not None
        stack = stack_of(mine)
        assert stack is not None and {layer.gate_up.kind for layer in stack.layers} == {kinds[kind]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NativeProducts, "keep", False)
        plain = loaded(settings)
    assert run(mine, settings, TRAFFIC) == run(plain, settings, TRAFFIC)
    compare(settings, TRAFFIC)


def test_a_folder_of_bfloat16_in_a_model_of_float32(tmp_path: Path) -> None:
    model = make("llama", **(SIZES | WHOLE)).bfloat16()
    model.save_pretrained(tmp_path)
    compare(config(tmp_path), TRAFFIC)


def test_adapters(tmp_path: Path) -> None:
    """Steps with an adapter run layer by layer, the others in one call."""
    folder, tuned = write(tmp_path / "model", **WHOLE), adapter(tmp_path / "tuned", **WHOLE)
    adds = [replace(group(1, 9, 2, 3, 1), adapter="tuned"), group(2, 9, 1, 6, 1)]
    compare(config(folder, adapters=(("tuned", str(tuned)),)), list(adds))


@pytest.mark.parametrize(
    ("sizes", "settings"),
    [
        ({}, {"kernels": "torch"}),
        ({}, {"deterministic": True}),
        ({}, {"dtype": "float16"}),
        ({"head_dim": 8}, {}),
        ({"hidden_size": 40}, {}),
        ({"intermediate_size": 40}, {}),
    ],
    ids=str,
)
def test_what_takes_torchs_backend(tmp_path: Path, sizes: dict[str, Any], settings: dict[str, Any]) -> None:
    assert isinstance(CpuRunner.load(config(write(tmp_path, **sizes), **settings))._backend, TorchBackend)


def test_a_model_of_transformers_takes_torchs_backend(tmp_path: Path) -> None:
    write(tmp_path, "gpt_oss", sliding_window=8, num_local_experts=4, num_experts_per_tok=2)
    assert isinstance(CpuRunner.load(config(tmp_path))._backend, TorchBackend)


def test_asked_for_by_name_it_must_be_there(tmp_path: Path) -> None:
    """With kernels=native, a model that the kernels do not know is refused."""
    with pytest.raises(ConfigError, match="kernels is native, which does not support this model"):
        CpuRunner.load(config(write(tmp_path, head_dim=8), kernels="native"))
