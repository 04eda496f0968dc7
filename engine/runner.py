"""A loaded model with its KV cache on the CPU: turns a Batch into tokens, and knows nothing of requests.

One step is one pass: the tokens of all chunks and rows run through the products together, and only the
rows of the residual stream that somebody draws from become logits.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch

from engine.attention.cache import KvCache
from engine.attention.compute import Attention
from engine.batch import Batch, StepOutput
from engine.config import EngineConfig
from engine.device.memory import ram
from engine.device.road import Machine, cpu_dtype, road
from engine.flat import adapted, chunks_at, drawn_from
from engine.messages import Logprobs, Ready
from engine.models.load import load_model
from engine.models.lora import TokensOf
from engine.models.model import Model
from engine.models.ops import TorchOps
from engine.models.rope import rotations
from engine.models.spec import kv_values_per_token
from engine.sampling.logprobs import logprobs, positions
from engine.sampling.sampler import Sampler

if TYPE_CHECKING:
    from engine.device.runner import DeviceRunner


def load(config: EngineConfig) -> Runner | DeviceRunner:
    """Load the model on the road that the settings and this machine come to; as Runner.load."""
    machine = Machine.here()
    chosen = road(config, machine)
    if chosen.kernels == "torch":
        return Runner.load(config)
    # Imported here: it brings in Triton, which a CPU need not have.
    from engine.device.runner import DeviceRunner

    return DeviceRunner.load(config, chosen)


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs steps, one at a time, on the thread that calls; the cache is the only thing that a step changes, but for
    what the sampler remembers to save work."""

    overlaps: ClassVar[bool] = False
    ready: Ready
    _model: Model
    _turns: torch.Tensor | None  # each position's rotation, [positions, D / 2]
    _cache: KvCache
    _attention: Attention
    _sampler: Sampler

    @classmethod
    def load(cls, config: EngineConfig) -> Runner:
        """Load the model and lay out the cache on the CPU; sets torch's threads to the cores this process may use.

        Raises ModelError for files that cannot be run, ConfigError for settings that do not fit the model.
        """
        torch.set_num_threads(usable_cores())
        dtype = cpu_dtype(config, Machine.here())
        model = load_model(Path(config.model), dtype, config.max_model_len, config.adapters)
        token_bytes = kv_values_per_token(model.attention) * dtype.itemsize
        blocks = config.kv_blocks(token_bytes, ram())
        cache = KvCache(model.attention, blocks, config.block_size, dtype)
        ready = Ready(
            vocab_size=model.vocab,
            max_model_len=model.context,
            blocks=blocks,
            block_size=config.block_size,
            kv_bytes_per_token=token_bytes,
            eos_tokens=model.eos,
            device="cpu",
            dtype=str(dtype).removeprefix("torch."),
        )
        turns = None if model.frequencies is None else rotations(model.frequencies, model.context)
        return cls(ready, model, turns, cache, Attention(model.attention, cache), Sampler())

    def submit(self, batch: Batch) -> StepOutput:
        """Carry out copies, then run chunks and rows in one pass, and draw; done when this returns."""
        with torch.inference_mode():
            if batch.copies:
                self._cache.copy_blocks(batch.copies)
            if not batch.chunks and not batch.rows:
                return StepOutput()
            x = self._forward(batch)
            output = self._draw(batch, x)
            scored, pooled = self._prompt_logprobs(batch, x), self._pooled(batch, x)
            return replace(output, prompt_logprobs=scored, pooled=pooled) if scored or pooled else output

    def _forward(self, batch: Batch) -> torch.Tensor:
        """The residual stream [T, H] after the last layer, chunks' tokens first, then the rows'."""
        tokens: list[int | None] = []  # never None, as nothing overlaps here; torch would not take it
        positions: list[int] = []
        for chunk in batch.chunks:
            tokens += chunk.tokens
            positions += range(chunk.start, chunk.start + len(chunk.tokens))
        tokens += [row.token for row in batch.rows]
        positions += [row.position for row in batch.rows]
        attend = partial(self._attention.run, self._attention.plan(batch))
        where = torch.tensor(positions)
        turn = None if self._turns is None else self._turns[where].unsqueeze(1)
        ops = TorchOps(attend, turn, self._cache.dtype)
        adapters = [TokensOf(name, torch.tensor(mine)) for name, mine in adapted(batch).items()]
        return self._model.run(torch.tensor(tokens), where, ops, adapters)

    def _draw(self, batch: Batch, x: torch.Tensor) -> StepOutput:
        """Logits of the tokens that somebody draws from, and the draws in the order of StepOutput."""
        sources, rows = drawn_from(batch)
        if not rows:
            return StepOutput()
        logits = self._model.logits(x if len(sources) == len(x) else x[torch.tensor(sources)])
        return self._sampler.sample(logits, rows, batch.draws, batch.masks)

    def _prompt_logprobs(self, batch: Batch, x: torch.Tensor) -> dict[int, tuple[Logprobs, ...]]:
        """Of the chunks with next_tokens, by sequence; logits of a slice of positions at a time."""
        told: dict[int, tuple[Logprobs, ...]] = {}
        size = positions(self.ready.vocab_size)
        for chunk, begin in chunks_at(batch):
            scored: list[Logprobs] = []
            for start in range(0, len(chunk.next_tokens), size):
                followers = chunk.next_tokens[start : start + size]
                logits = self._model.logits(x[begin + start : begin + start + len(followers)])
                scored += logprobs(logits, [(i, token, chunk.prompt_logprobs) for i, token in enumerate(followers)])
            if scored:
                told[chunk.sequence] = tuple(scored)
        return told

    def _pooled(self, batch: Batch, x: torch.Tensor) -> dict[int, tuple[float, ...]]:
        """Of the chunks whose hidden states are asked for, by sequence: their sum, or the prompt's last one."""
        told: dict[int, tuple[float, ...]] = {}
        for chunk, begin in chunks_at(batch):
            end = begin + len(chunk.tokens)
            if chunk.pooling == "mean":
                told[chunk.sequence] = tuple(self._model.hidden(x[begin:end]).float().sum(0).tolist())
            elif chunk.pooling == "last" and chunk.last:
                told[chunk.sequence] = tuple(self._model.hidden(x[end - 1 : end])[0].tolist())
        return told


def usable_cores() -> int:
    """Threads that torch should take: its own default, but no more than affinity and the cgroup's quota allow."""
    cores = min(torch.get_num_threads(), len(os.sched_getaffinity(0)))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(min(cores, round(int(quota) / int(period))), 1)
