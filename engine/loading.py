"""Loads a runner: the CPU's or a device's, as the settings and this machine determine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from engine import deterministic_trial
from engine.backends import Machine, backend
from engine.batch import Batch, StepOutput
from engine.config import EngineConfig
from engine.cpu_runner import CpuRunner
from engine.errors import ConfigError
from engine.kv_spans import FIXED_SPAN

if TYPE_CHECKING:
    from engine.device.runner import DeviceRunner


def load_runner(config: EngineConfig) -> CpuRunner | DeviceRunner:
    """Load the model on the backend that the settings and this machine determine.

    Raises ModelError for files that cannot be run, ConfigError for settings that do not fit the model or the machine,
    and if deterministic mode is asked for and does not hold on this machine.
    """
    if config.deterministic and FIXED_SPAN % config.block_size:
        raise ConfigError(f"deterministic: block_size must divide {FIXED_SPAN}, and {config.block_size} does not")
    runner = _load(config)
    if config.deterministic:
        _try_deterministic(config, runner)
    return runner


def _load(config: EngineConfig) -> CpuRunner | DeviceRunner:
    chosen = backend(config, Machine.here())
    if chosen.device.type == "cpu" and chosen.kernels != "triton":
        return CpuRunner.load(config)
    # Imported here because it imports Triton, which need not be installed for a CPU.
    from engine.device.runner import DeviceRunner

    return DeviceRunner.load(config, chosen)


def _try_deterministic(config: EngineConfig, runner: CpuRunner | DeviceRunner) -> None:
    """Raise ConfigError if deterministic mode does not hold here, for the model itself or for one of its adapters."""

    def run(batch: Batch) -> StepOutput:
        return runner.submit(batch).result()

    for adapter in (None, *(name for name, _ in config.adapters)):
        if not deterministic_trial.holds(run, runner.ready, config.max_sequences, config.max_logprobs, adapter):
            which = "" if adapter is None else f" with the adapter {adapter}"
            raise ConfigError(
                f"deterministic: here a row's numbers depend on the rows beside it{which}; another dtype or number of"
                f" threads (OMP_NUM_THREADS, now {torch.get_num_threads()}) may do"
            )
