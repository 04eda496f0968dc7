"""Which device a model runs on, with which kernels and in which dtype: what the settings mean on this machine."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
from dataclasses import dataclass, replace
from typing import Literal

import torch

from engine.config import EngineConfig
from engine.errors import ConfigError

_log = logging.getLogger(__name__)
_OLDEST = (8, 0)  # the compute capability that Triton and bfloat16 products need (Ampere)
_CPU_KERNELS = ("torch", "native")
_NATIVE = (torch.float32, torch.bfloat16)
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class Backend:
    """A device, the kernels for what runs between the matrix products there, and the dtype of weights and KV."""

    device: torch.device
    kernels: Literal["torch", "native", "triton"]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Machine:
    """The hardware and software that the backend is chosen from."""

    cuda: tuple[int, int] | None  # the CUDA device's compute capability
    triton: bool
    interpreted: bool  # Triton's kernels run on the CPU under its interpreter: for tests
    cpu_bfloat16: bool  # the CPU multiplies bfloat16 natively
    compiler: bool  # a C compiler: Triton builds its launchers with it, and the native kernels are built with it

    @classmethod
    def here(cls) -> Machine:
        """Describe this machine; imports nothing large."""
        return cls(
            cuda=torch.cuda.get_device_capability() if torch.cuda.is_available() else None,
            triton=importlib.util.find_spec("triton") is not None,
            interpreted=os.environ.get("TRITON_INTERPRET") == "1",
            cpu_bfloat16=torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported(),
            compiler=bool(os.environ.get("CC")) or any(shutil.which(name) for name in ("clang", "gcc")),
        )

    @property
    def why_no_cuda(self) -> str | None:
        """Why the engine cannot use its CUDA device; None if it can."""
        if self.cuda is None:
            return "torch finds no CUDA device"
        if self.cuda < _OLDEST:
            return "the CUDA device has compute capability {}.{}, and Triton needs 8.0".format(*self.cuda)
        if not self.triton:
            return "Triton is not installed: pip install triton"
        if not self.compiler:
            return "Triton finds no C compiler, which it needs to launch kernels: install gcc and Python's headers"
        return None


def backend(config: EngineConfig, machine: Machine) -> Backend:
    """Return the backend for these settings.

    Raises ConfigError if they ask for something that this machine does not have or cannot run. If the device is left
    open and a CUDA device cannot be used, the CPU is taken, and the log says why.
    """
    device = config.device
    if device == "auto":
        device = "cpu" if machine.why_no_cuda or config.kernels in _CPU_KERNELS else "cuda"
        if machine.cuda and machine.why_no_cuda:
            _log.warning("the engine runs on the CPU: %s", machine.why_no_cuda)
    if device == "cuda" and machine.why_no_cuda:
        raise ConfigError(f"device is cuda, but {machine.why_no_cuda}")
    kernels = config.kernels
    if kernels in _CPU_KERNELS and device == "cuda":
        raise ConfigError("device is cuda, so kernels must be auto or triton: the others are for a CPU")
    dtype = _dtype(config, device, kernels, machine)
    if kernels == "auto":
        native = machine.compiler and dtype in _NATIVE
        kernels = "triton" if device == "cuda" else "native" if native else "torch"
    if kernels == "native":
        _check_native(machine, dtype)
    if kernels == "triton" and not machine.triton:
        raise ConfigError("kernels is triton, which is not installed: pip install triton")
    if kernels == "triton" and device == "cpu" and not machine.interpreted:
        raise ConfigError(
            "kernels is triton, which has no compiler for a CPU: device must be cuda (or TRITON_INTERPRET=1, for tests)"
        )
    if kernels == "triton" and device == "cpu" and config.dtype == "bfloat16":
        raise ConfigError("dtype is bfloat16, which Triton's interpreter computes incorrectly")
    if kernels == "triton" and config.quantization:
        raise ConfigError(
            f"quantization is {config.quantization}, which is supported on a CPU only: device must be cpu"
        )
    return Backend(torch.device(device), kernels, dtype)


def cpu_backend(config: EngineConfig, machine: Machine) -> Backend:
    """Return the backend on a CPU without Triton, whatever device the settings name; raises ConfigError
    like `backend`.
    """
    kernels = config.kernels if config.kernels in _CPU_KERNELS else "auto"
    return backend(replace(config, device="cpu", kernels=kernels), machine)


def _check_native(machine: Machine, dtype: torch.dtype) -> None:
    if not machine.compiler:
        raise ConfigError("kernels is native, which needs a C compiler, and there is none: install gcc")
    if dtype not in _NATIVE:
        raise ConfigError(f"kernels is native, which supports only float32 and bfloat16, but dtype is {str(dtype)[6:]}")


def round_once() -> None:
    """Make products in this process round as they do on a CPU: float32 is not reduced to TF32, which some of NVIDIA's
    images switch on, and partial sums are added in float32.

    torch lets cuBLAS add them in the inputs' type. With few rows long sums are split into parts, into more parts the
    fewer rows there are. So a row's numbers when it runs alone would differ from those in a larger batch by far more
    than the order of a sum can explain.
    """
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False


def _dtype(config: EngineConfig, device: str, kernels: str, machine: Machine) -> torch.dtype:
    if config.dtype != "auto":
        return _DTYPES[config.dtype]
    # On a CPU bfloat16 pays off if the CPU multiplies it natively; otherwise it is emulated and slower than float32.
    return torch.bfloat16 if device == "cuda" or (kernels != "triton" and machine.cpu_bfloat16) else torch.float32
