"""Deterministic mode on the native backend: rows run together, and each is what it is alone, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.attention.torch_backend import TorchBackend
from engine.backends import Machine
from engine.config import EngineConfig
from engine.cpu_runner import CpuRunner
from engine.errors import ConfigError
from engine.loading import load_runner
from engine.models.lora import Pair
from engine.models.products import Products
from engine.native.backend import NativeBackend
from engine.native.build import load_kernels
from engine.native.products import NativePair, NativeProducts
from engine.passes import passes
from tests.engine.test_deterministic import SIZE, TRAFFIC, Answers, alone, answers, group
from tests.fakes.adapters import write_adapter
from tests.fakes.tiny_models import save

pytestmark = pytest.mark.usefixtures("_processor")

SIZES: dict[str, Any] = {
    "hidden_size": 96,
    "intermediate_size": 96,
    "head_dim": 16,
    "vocab_size": 1024,
    "max_position_embeddings": 700,
}
NUMBERS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "float32", "quantization": "int8"},
}


def load(folder: Path, **settings: Any) -> CpuRunner:
    """Return a model's runner in deterministic mode: native wherever the kernels have products of these numbers."""
    config = EngineConfig(str(folder), num_blocks=900, block_size=SIZE, deterministic=True, **settings)
    runner = CpuRunner.load(config)
    dtype = runner._cache.dtype
    native = load_kernels(dtype)
    by_floats = dtype == torch.float32 or not Machine.here().cpu_bfloat16
    computed = native.together if config.quantization else native.wide and (by_floats or native.paired)
    assert isinstance(runner._backend, NativeBackend if computed else TorchBackend)
    return runner


@pytest.fixture(scope="module", params=NUMBERS)
def runner(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, _processor: None) -> CpuRunner:
    """A model whose windows end inside a span."""
    folder = tmp_path_factory.mktemp("model")
    save(folder, "mistral", sliding_window=90, **SIZES)
    return load(folder, **NUMBERS[request.param])


@pytest.fixture(scope="module")
def apart(runner: CpuRunner) -> Answers:
    return {key: answered for one in TRAFFIC for key, answered in alone(runner, one).items()}


@pytest.mark.parametrize("every", [0, 1, 4])
def test_beside_others(runner: CpuRunner, apart: Answers, every: int) -> None:
    answered, stats = answers(runner, TRAFFIC, every=every)
    assert answered == apart
    assert stats.prefix_kv_bytes_read > 0


def test_preempted(runner: CpuRunner, apart: Answers) -> None:
    answered, stats = answers(runner, TRAFFIC[:-1], blocks=57, every=1)
    assert stats.preemptions > 2
    assert answered == {key: mine for key, mine in apart.items() if key[0] != TRAFFIC[-1].group}


def test_behind_a_warm_cache(runner: CpuRunner, apart: Answers) -> None:
    warm = [replace(one, group=one.group + 100) for one in TRAFFIC] + [group(8, 120, 2, 20, like=3)]
    answered, stats = answers(runner, TRAFFIC, warm=warm, every=2)
    assert stats.prefix_cache_hits > 300
    assert answered == apart


BIASED: dict[str, Any] = {"hidden_size": 128, "num_attention_heads": 8, "num_key_value_heads": 2}


@pytest.mark.parametrize(("family", "sizes"), [("qwen3", {}), ("qwen2", BIASED)], ids=["norms of heads", "biases"])
@pytest.mark.parametrize("numbers", NUMBERS.values(), ids=NUMBERS)
def test_other_families(tmp_path: Path, family: str, sizes: dict[str, Any], numbers: dict[str, Any]) -> None:
    save(tmp_path, family, **{**SIZES, **sizes})
    runner = load(tmp_path, **numbers)
    adds = [TRAFFIC[0], TRAFFIC[2], TRAFFIC[5]]
    answered, _ = answers(runner, adds, every=1)
    assert answered == {key: mine for one in adds for key, mine in alone(runner, one).items()}


@pytest.mark.parametrize("numbers", NUMBERS.values(), ids=NUMBERS)
def test_adapters(tmp_path: Path, numbers: dict[str, Any]) -> None:
    model = save(tmp_path / "model", **SIZES)
    modules = [f"model.layers.{i}.{product}" for i in range(3) for product in ("self_attn.q_proj", "mlp.down_proj")]
    for seed, name in enumerate("ab"):
        write_adapter(tmp_path / name, model, modules, seed, rank=6)
    runner = load(tmp_path / "model", adapters=(("a", str(tmp_path / "a")), ("b", str(tmp_path / "b"))), **numbers)
    adds = [replace(group(i, 30, 3, 10), adapter=name) for i, name in enumerate(("a", "b", None, "a"))]
    answered, _ = answers(runner, adds, every=1)
    assert answered == {key: mine for one in adds for key, mine in alone(runner, one).items()}


def test_a_step_is_one_pass(runner: CpuRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """All chunks and rows run together, without padding; torch's backend takes them apart."""
    seen: list[int] = []

    def watched(batch: Any, rows: int | None) -> Any:
        made = passes(batch, rows)
        seen.append(len(made))
        assert not isinstance(runner._backend, NativeBackend) or all(part.rows == part.batch.rows for part in made)
        return made

    monkeypatch.setattr("engine.cpu_runner.passes", watched)
    answers(runner, TRAFFIC[:4])
    assert (max(seen) == 1) == isinstance(runner._backend, NativeBackend)


def test_where_a_product_is_torchs_torch_runs_it(tmp_path: Path) -> None:
    """A vocabulary that is no multiple of a panel: the head is torch's, so rows run apart."""
    save(tmp_path, **SIZES | {"vocab_size": 1003})
    config = EngineConfig(str(tmp_path), dtype="bfloat16", num_blocks=900, block_size=SIZE, deterministic=True)
    runner = load_runner(config)
    assert isinstance(runner, CpuRunner)
    assert isinstance(runner._backend, TorchBackend)
    assert runner.ready.kernels == "torch"
    adds = [TRAFFIC[0], TRAFFIC[3]]
    answered, _ = answers(runner, adds, every=1)
    assert answered == {key: mine for one in adds for key, mine in alone(runner, one).items()}
    with pytest.raises(ConfigError, match="kernels is native, which does not support this model in deterministic mode"):
        load_runner(replace(config, kernels="native"))


def test_where_an_adapters_product_is_torchs_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = save(tmp_path / "model", **SIZES)
    write_adapter(tmp_path / "a", model, ["model.layers.0.mlp.down_proj"], 1)
    monkeypatch.setattr(NativeProducts, "pair", Products.pair)
    config = EngineConfig(str(tmp_path / "model"), dtype="bfloat16", num_blocks=900, deterministic=True)
    adapted = CpuRunner.load(replace(config, adapters=(("a", str(tmp_path / "a")),)))
    assert isinstance(adapted._backend, TorchBackend)


@pytest.mark.parametrize("rank", [1, 16, 40])
def test_an_adapters_pair_is_torchs(rank: int) -> None:
    torch.manual_seed(4)
    pair, x = Pair(torch.randn(96, rank), torch.randn(rank, 192)), torch.randn(40, 96)
    mine = NativeProducts(load_kernels(torch.float32), emulated=True).pair(pair)
    assert isinstance(mine, NativePair) == load_kernels(torch.float32).wide
    torch.testing.assert_close(mine(x), pair(x), rtol=1e-4, atol=1e-4)
