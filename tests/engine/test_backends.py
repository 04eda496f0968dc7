"""Which backend settings and machine come to, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.backends import Machine, backend, round_once
from engine.config import EngineConfig
from engine.errors import ConfigError
from tests.real.processes import ROOT

GPU = Machine(cuda=(9, 0), triton=True, interpreted=False, cpu_bfloat16=False, compiler=True)
CPU = Machine(cuda=None, triton=True, interpreted=False, cpu_bfloat16=True, compiler=True)
PLAIN = Machine(cuda=None, triton=False, interpreted=False, cpu_bfloat16=False, compiler=True)
ALONE = replace(GPU, compiler=False)
BARE_GPU = replace(GPU, triton=False)
OLD_GPU = replace(GPU, cuda=(7, 5))
TEST = Machine(cuda=None, triton=True, interpreted=True, cpu_bfloat16=True, compiler=True)


@pytest.mark.parametrize(
    ("machine", "settings", "device", "kernels", "dtype"),
    [
        (GPU, {}, "cuda", "triton", torch.bfloat16),
        (GPU, {"dtype": "float16"}, "cuda", "triton", torch.float16),
        (GPU, {"device": "cpu"}, "cpu", "native", torch.float32),
        (GPU, {"kernels": "torch"}, "cpu", "torch", torch.float32),
        (GPU, {"kernels": "native"}, "cpu", "native", torch.float32),
        (CPU, {}, "cpu", "native", torch.bfloat16),
        (CPU, {"deterministic": True}, "cpu", "native", torch.bfloat16),
        (CPU, {"dtype": "float16"}, "cpu", "torch", torch.float16),
        (PLAIN, {}, "cpu", "native", torch.float32),
        (BARE_GPU, {}, "cpu", "native", torch.float32),
        (ALONE, {}, "cpu", "torch", torch.float32),
        (OLD_GPU, {}, "cpu", "native", torch.float32),
        (TEST, {}, "cpu", "native", torch.bfloat16),
        (TEST, {"kernels": "triton"}, "cpu", "triton", torch.float32),
    ],
)
def test_the_road(machine: Machine, settings: dict[str, Any], device: str, kernels: str, dtype: torch.dtype) -> None:
    chosen = backend(EngineConfig("m", **settings), machine)
    assert (chosen.device, chosen.kernels, chosen.dtype) == (torch.device(device), kernels, dtype)


@pytest.mark.parametrize(
    ("machine", "settings", "said"),
    [
        (CPU, {"device": "cuda"}, "torch finds no CUDA device"),
        (GPU, {"device": "cuda", "kernels": "torch"}, "kernels must be auto or triton"),
        (GPU, {"device": "cuda", "kernels": "native"}, "kernels must be auto or triton"),
        (ALONE, {"kernels": "native"}, "needs a C compiler, and there is none: install gcc"),
        (
            CPU,
            {"kernels": "native", "dtype": "float16"},
            "which supports only float32 and bfloat16, but dtype is float16",
        ),
        (BARE_GPU, {"device": "cuda"}, "Triton is not installed: pip install triton"),
        (PLAIN, {"kernels": "triton"}, "which is not installed: pip install triton"),
        (OLD_GPU, {"device": "cuda"}, "compute capability 7.5"),
        (ALONE, {"device": "cuda"}, "no C compiler"),
        (GPU, {"quantization": "int8"}, "quantization is int8, which is supported on a CPU only: device must be cpu"),
        (TEST, {"kernels": "triton", "quantization": "int8"}, "quantization is int8, which is supported on a CPU only"),
        (CPU, {"kernels": "triton"}, "device must be cuda"),
        (GPU, {"device": "cpu", "kernels": "triton"}, "device must be cuda"),
        (TEST, {"kernels": "triton", "dtype": "bfloat16"}, "interpreter computes incorrectly"),
    ],
)
def test_roads_that_are_not_there(machine: Machine, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        backend(EngineConfig("m", **settings), machine)


def test_a_gpu_that_cannot_be_used_is_passed_by_and_told_of(caplog: pytest.LogCaptureFixture) -> None:
    backend(EngineConfig("m"), GPU)
    backend(EngineConfig("m"), CPU)
    assert not caplog.records
    backend(EngineConfig("m"), OLD_GPU)
    assert "runs on the CPU: the CUDA device has compute capability 7.5" in caplog.text


def test_a_compiler_is_looked_for_as_triton_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not Machine.here().compiler
    (tmp_path / "gcc").touch(mode=0o755)
    assert Machine.here().compiler
    (tmp_path / "gcc").unlink()
    monkeypatch.setenv("CC", "icx")
    assert Machine.here().compiler


def test_the_cpu_road_imports_no_triton() -> None:
    code = "import sys, engine.loading; assert not [name for name in sys.modules if name.partition('.')[0] == 'triton']"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)


def test_products_round_once() -> None:
    products = torch.backends.cuda.matmul
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")  # as an image's TORCH_ALLOW_TF32_CUBLAS_OVERRIDE does
        round_once()
        assert torch.get_float32_matmul_precision() == "highest"
        assert not products.allow_tf32
        assert not products.allow_bf16_reduced_precision_reduction
        assert not products.allow_fp16_reduced_precision_reduction
    finally:
        torch.set_float32_matmul_precision(before)
        products.allow_bf16_reduced_precision_reduction = products.allow_fp16_reduced_precision_reduction = True
