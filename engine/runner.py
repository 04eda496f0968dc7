"""A loaded model with its KV cache: turns a Batch into tokens, and knows nothing of requests.

One step is one pass: the tokens of all chunks and rows run through the products together, and only the
rows of the residual stream that somebody draws from become logits.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

import torch

from engine.attention.cache import KvCache
from engine.attention.compute import Attention
from engine.batch import Batch, Draw, StepOutput
from engine.config import EngineConfig
from engine.messages import Logprobs, Ready
from engine.models.load import load_model
from engine.models.lora import TokensOf
from engine.models.model import Model
from engine.models.ops import TorchOps
from engine.models.rope import rotations
from engine.models.spec import kv_values_per_token
from engine.sampling.logprobs import logprobs, positions
from engine.sampling.sampler import Sampler

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


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
        """Load the model and lay out the cache; sets torch's threads to the cores this process may use.

        Raises ModelError for files that cannot be run, ConfigError for settings that do not fit the model.
        """
        torch.set_num_threads(usable_cores())
        dtype = _dtype(config.dtype)
        model = load_model(Path(config.model), dtype, config.max_model_len, config.adapters)
        token_bytes = kv_values_per_token(model.attention) * dtype.itemsize
        blocks = config.kv_blocks(token_bytes, _memory())
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
        return self._model.run(torch.tensor(tokens), where, ops, _adapted(batch))

    def _draw(self, batch: Batch, x: torch.Tensor) -> StepOutput:
        """Logits of the tokens that somebody draws from, and the draws in the order of StepOutput."""
        sources: list[int] = []  # tokens of the step whose logits are needed
        rows: list[int] = []  # per draw, which of them
        draws: list[Draw] = []
        end = 0
        for chunk in batch.chunks:
            end += len(chunk.tokens)
            if chunk.draws:
                rows += [len(sources)] * len(chunk.draws)
                draws += chunk.draws
                sources.append(end - 1)
        for row in batch.rows:
            if row.draw is not None:
                rows.append(len(sources))
                draws.append(row.draw)
                sources.append(end)
            end += 1
        if not draws:
            return StepOutput()
        logits = self._model.logits(x if len(sources) == len(x) else x[torch.tensor(sources)])
        return self._sampler.sample(logits, rows, draws, batch.masks)

    def _prompt_logprobs(self, batch: Batch, x: torch.Tensor) -> dict[int, tuple[Logprobs, ...]]:
        """Of the chunks with next_tokens, by sequence; logits of a slice of positions at a time."""
        told: dict[int, tuple[Logprobs, ...]] = {}
        size = positions(self.ready.vocab_size)
        begin = 0
        for chunk in batch.chunks:
            scored: list[Logprobs] = []
            for start in range(0, len(chunk.next_tokens), size):
                followers = chunk.next_tokens[start : start + size]
                logits = self._model.logits(x[begin + start : begin + start + len(followers)])
                scored += logprobs(logits, [(i, token, chunk.prompt_logprobs) for i, token in enumerate(followers)])
            if scored:
                told[chunk.sequence] = tuple(scored)
            begin += len(chunk.tokens)
        return told

    def _pooled(self, batch: Batch, x: torch.Tensor) -> dict[int, tuple[float, ...]]:
        """Of the chunks whose hidden states are asked for, by sequence: their sum, or the prompt's last one."""
        told: dict[int, tuple[float, ...]] = {}
        begin = 0
        for chunk in batch.chunks:
            end = begin + len(chunk.tokens)
            if chunk.pooling == "mean":
                told[chunk.sequence] = tuple(self._model.hidden(x[begin:end]).float().sum(0).tolist())
            elif chunk.pooling == "last" and chunk.last:
                told[chunk.sequence] = tuple(self._model.hidden(x[end - 1 : end])[0].tolist())
            begin = end
        return told


def _adapted(batch: Batch) -> list[TokensOf]:
    """Which of the step's tokens run with which adapter."""
    tokens: dict[str, list[int]] = {}
    begin = 0
    for chunk in batch.chunks:
        if chunk.adapter is not None:
            tokens.setdefault(chunk.adapter, []).extend(range(begin, begin + len(chunk.tokens)))
        begin += len(chunk.tokens)
    for number, row in enumerate(batch.rows, begin):
        if row.adapter is not None:
            tokens.setdefault(row.adapter, []).append(number)
    return [TokensOf(adapter, torch.tensor(mine)) for adapter, mine in tokens.items()]


def usable_cores() -> int:
    """Threads that torch should take: its own default, but no more than affinity and the cgroup's quota allow."""
    cores = min(torch.get_num_threads(), len(os.sched_getaffinity(0)))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return cores
    return cores if quota == "max" else max(min(cores, round(int(quota) / int(period))), 1)


def _memory() -> int:
    """Bytes of RAM this process may use: the machine's, or the cgroup's limit where that is lower."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return machine
    return machine if limit == "max" else min(machine, int(limit))


def _dtype(name: str) -> torch.dtype:
    if name != "auto":
        return _DTYPES[name]
    # bfloat16 pays where the CPU multiplies it; elsewhere it is emulated and slower than float32.
    fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if fast else torch.float32
