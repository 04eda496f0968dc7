"""int8 weights: as near as rounding allows, the same for a token in any company, refused where they cannot be."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.cpu_runner import CpuRunner
from engine.errors import ConfigError
from engine.messages import Add
from engine.models.load import load_model
from engine.models.model import Model
from engine.models.quantized import Int8Matrix, adds_up_exactly, check_int8
from tests.engine.test_deterministic import alone, answers, group, load
from tests.fakes.adapters import write_adapter
from tests.fakes.tiny_models import Scorer, reference_logits, save

TOKENS = list(range(1, 60, 3))


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


# ---- products


@pytest.mark.parametrize("rows", [1, 2, 7, 33, 300])
@pytest.mark.parametrize(("out", "width"), [(71, 48), (960, 576), (576, 1536)])
def test_a_product_is_as_near_as_its_rounding_allows(rows: int, out: int, width: int) -> None:
    x, weight, bias = numbers(rows, width), numbers(out, width), numbers(out)
    half = [t.abs().amax(1, keepdim=True).double() / 254 for t in (x, weight)]  # of a step, by row
    exact = x.double() @ weight.double().T + bias.double()
    allowed = half[0] * weight.abs().sum(1) + x.abs().sum(1, keepdim=True) * half[1].T + width * half[0] * half[1].T
    y = Int8Matrix.of(weight.clone()).product(x, bias)
    assert y.dtype == torch.float32
    assert ((y - exact).abs() <= allowed + 1e-4).all()
    assert ((y - exact).norm() / exact.norm()).item() < 0.02


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_numbers_of_one_byte_are_multiplied_exactly(dtype: torch.dtype) -> None:
    weight = torch.randint(-127, 128, (40, 64), generator=torch.Generator().manual_seed(1)).float()
    weight[:, 0], x = 127, torch.eye(64)[:5] * 127
    y = Int8Matrix.of(weight.clone()).product(x.to(dtype))
    assert y.dtype == dtype
    assert torch.equal(y, (x @ weight.T).to(dtype))


def test_zeros_stay_zeros() -> None:
    weight = numbers(8, 16)
    weight[3] = 0
    matrix = Int8Matrix.of(weight)
    assert torch.equal(matrix.product(torch.zeros(2, 16)), torch.zeros(2, 8))
    assert torch.equal(matrix.product(numbers(2, 16))[:, 3], torch.zeros(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_in_any_company(dtype: torch.dtype) -> None:
    matrix, bias = Int8Matrix.of(numbers(963, 577)), numbers(963)
    x = (numbers(70, 577) * torch.logspace(-3, 3, 70).unsqueeze(1)).to(dtype)  # a neighbour may be much larger
    whole = matrix.product(x, bias)
    for rows in (*range(1, 40), 64):
        assert torch.equal(matrix.product(x[:rows], bias), whole[:rows]), rows
        assert torch.equal(matrix.product(x[-rows:], bias), whole[-rows:]), rows


def test_rows_of_a_matrix_are_those_of_the_weights() -> None:
    weight = numbers(50, 33)
    rows = Int8Matrix.of(weight.clone()).rows(torch.tensor([4, 0, 4]))
    torch.testing.assert_close(rows, weight[[4, 0, 4]], atol=weight.abs().max().item() / 254, rtol=0)


# ---- models


class _Int8(Scorer):
    """The engine's model part, quantized."""

    def __init__(self, path: Path, **settings: Any) -> None:
        super().__init__(path, **settings)
        self.decoder = load_model(path, settings.get("dtype", torch.float32), None, int8=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("kind", "settings"),
    [("llama", {"tie_word_embeddings": True}), ("qwen2", {}), ("qwen3", {"head_dim": 16})],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_scores_are_near_those_of_transformers(
    tmp_path: Path, kind: str, settings: dict[str, Any], dtype: torch.dtype
) -> None:
    expected = reference_logits(save(tmp_path, kind, **settings), TOKENS)
    logits = _Int8(tmp_path, dtype=dtype).prompt(TOKENS, (0, 1, 2, 3, 4))
    assert 1e-4 < ((logits - expected).norm() / expected.norm()).item() < 0.06


@pytest.mark.parametrize("tied", [True, False])
def test_no_matrix_is_kept_in_floats(tmp_path: Path, tied: bool) -> None:
    save(tmp_path, vocab_size=1009, tie_word_embeddings=tied)
    model = load_model(tmp_path, torch.float32, None, int8=True)
    assert {t.dtype for t in _matrices(model)} == {torch.int8}
    assert len([t for t in _matrices(model) if len(t) == 1009]) == (1 if tied else 2)


def _matrices(model: Model) -> list[torch.Tensor]:
    """The tensors of two dimensions that a model reaches, by itself and by its functions."""
    found, seen, left = list[torch.Tensor](), set[int](), list[Any]([vars(model)])
    while left:
        each = left.pop()
        if id(each) in seen or isinstance(each, type) or hasattr(each, "__loader__"):
            continue
        seen.add(id(each))
        if isinstance(each, torch.Tensor):
            found += [each] if each.ndim == 2 else []
        elif not callable(each) or type(each).__module__ in ("functools", "builtins"):
            held = [*each.values()] if isinstance(each, dict) else gc.get_referents(each)
            left += [one for one in held if not isinstance(one, str | int | float)]
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_in_deterministic_mode_company_changes_nothing(tmp_path: Path, dtype: str) -> None:
    save(tmp_path, "llama", vocab_size=1003, intermediate_size=71, max_position_embeddings=700)
    runner = load(tmp_path, dtype, quantization="int8")
    traffic = [group(1, 37, 4, 8), group(2, 3, 1, 10), group(3, 300, 3, 6), group(4, 300, 2, 6, like=3)]
    told, _ = answers(runner, traffic, every=2)
    assert told == {key: mine for one in traffic for key, mine in alone(runner, one).items()}


def test_adapters_are_added_to_quantized_products(tmp_path: Path) -> None:
    model = save(tmp_path / "model")
    write_adapter(tmp_path / "a", model, ["model.layers.0.mlp.up_proj", "model.layers.2.self_attn.o_proj"], 1)
    adapters = (("a", str(tmp_path / "a")),)
    one = group(1, 14, 1, 1, vocab=97)
    told = {}
    for quantization in (None, "int8"):
        config = EngineConfig(
            str(tmp_path / "model"),
            dtype="float32",
            num_blocks=60,
            block_size=4,
            quantization=quantization,
            adapters=adapters,
        )
        runner = CpuRunner.load(config)
        for name in (None, "a"):
            ((token, logprobs),) = answers(runner, [_with(one, name)], deterministic=False)[0][1, 0]
            assert logprobs is not None
            told[quantization, name] = (token, logprobs.own)
    assert told[None, None] != told[None, "a"]
    for name in (None, "a"):
        assert told["int8", name][0] == told[None, name][0]
        assert told["int8", name][1] == pytest.approx(told[None, name][1], abs=0.3)


def _with(one: Add, adapter: str | None) -> Add:
    return replace(one, adapter=adapter)


# ---- where it cannot be


def test_models_of_other_classes_are_refused(tmp_path: Path) -> None:
    save(tmp_path, "gpt2")
    with pytest.raises(ConfigError, match="quantization is for models that the engine's own decoder runs"):
        load_model(tmp_path, torch.float32, None, int8=True)


@pytest.fixture
def added_up_in_16_bits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch's products as CPUs with AVX2 and without VNNI have them, by `vpmaddubsw`: one side is made
    positive, and a sum of two is cut to 16 bits."""

    def cut(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        products = (x.int() + 128).unsqueeze(2) * weights.int()
        pairs = products.view(len(x), -1, 2, weights.shape[1]).sum(2)
        return pairs.clamp(-(1 << 15), (1 << 15) - 1).sum(1) - 128 * weights.int().sum(0)

    monkeypatch.setattr(torch, "_int_mm", cut)
    adds_up_exactly.cache_clear()
    yield
    adds_up_exactly.cache_clear()


@pytest.mark.usefixtures("added_up_in_16_bits")
def test_a_cpu_that_adds_up_in_16_bits_is_refused() -> None:
    with pytest.raises(ConfigError, match="quantization is int8, which needs a CPU"):
        check_int8()
