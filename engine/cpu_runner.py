"""A loaded model with its KV cache on the CPU: turns a Batch into tokens, and knows nothing of requests.

One step is one pass: the tokens of all chunks and rows run through the matrix products together, and only the rows of
the residual stream that are drawn from become logits. In deterministic mode a step of torch's backend is several passes
(passes.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch

from engine.attention.cache import KvCache
from engine.attention.compute import Attention
from engine.attention.torch_backend import TorchBackend
from engine.backends import Machine, cpu_backend
from engine.batch import Batch, StepOutput
from engine.config import EngineConfig, cpu_pool
from engine.errors import ConfigError
from engine.kv_spans import FIXED_SPAN, SPAN
from engine.messages import Logprobs, Ready
from engine.models.load import load_model
from engine.models.lora import TokensOf
from engine.models.model import Model
from engine.models.products import TORCH
from engine.models.rope import rotations
from engine.models.spec import kv_bytes_per_token
from engine.native.backend import NativeBackend, compiled, takes
from engine.native.build import Kernels
from engine.native.draws import exponentials, from_scores
from engine.native.logprobs import log_probabilities
from engine.native.products import NativeProducts
from engine.passes import Pass, passes, rows_per_pass
from engine.readiness import ready_of
from engine.resources import give_back, ram, usable_cores
from engine.sampling.logprobs import positions
from engine.sampling.sampler import Sampler
from engine.token_layout import adapted, chunks_at, drawn_from

_MOST_ROWS = 32  # rows of a pass in deterministic mode; products of one row alone take about half as long
# Items of at least so many keys are read in place if that kernel is the faster one: for every dtype except a bfloat16
# that the CPU multiplies natively, for which batched products are faster. Deterministic mode always uses products.
_IN_PLACE = 256


@dataclass(frozen=True, slots=True)
class CpuRunner:
    """Runs steps one at a time, on the calling thread.

    A step changes the cache, and what the sampler remembers to save work; nothing else.
    """

    overlaps: ClassVar[bool] = False
    ready: Ready
    _model: Model
    _cache: KvCache
    _backend: NativeBackend | TorchBackend
    _sampler: Sampler
    _rows_per_pass: int | None = None  # decoding rows of one pass, in deterministic mode by torch

    @classmethod
    def load(cls, config: EngineConfig) -> CpuRunner:
        """Load the model and allocate the cache on the CPU; set torch's threads to the cores that this process may use.

        Raises ModelError for files that cannot be run, ConfigError for settings that do not fit the model.
        """
        torch.set_num_threads(usable_cores())
        machine = Machine.here()
        chosen = cpu_backend(config, machine)
        dtype = chosen.dtype
        native = compiled(config, dtype) if chosen.kernels == "native" else None
        emulated = not machine.cpu_bfloat16
        products = TORCH if native is None else NativeProducts(native, emulated)
        int8 = config.quantization == "int8"
        try:
            model = load_model(
                Path(config.model), dtype, config.max_model_len, config.adapters, int8=int8, products=products
            )
        except RuntimeError as error:
            if "allocate memory" not in str(error):  # torch has no type of its own for it on a CPU, nor safetensors
                raise
            raise ConfigError(f"there is not enough memory for {config.model}") from error
        give_back()
        token_bytes = kv_bytes_per_token(model.attention, dtype.itemsize)
        blocks = config.kv_blocks(token_bytes, ram(), cap=cpu_pool(model.context * token_bytes))
        try:
            cache = KvCache(model.attention, blocks, config.block_size, dtype)
        except (MemoryError, OSError) as error:
            size = blocks * config.block_size * token_bytes / 2**30
            raise ConfigError(f"num_blocks is {blocks}, which is {size:.1f} GiB of keys and values: {error}") from error
        made = _cpu_backend(config, native, model, cache, emulated=emulated)
        ready = ready_of(config, model, cache, made.kernels)
        rows = None
        if config.deterministic and isinstance(made, TorchBackend):
            rows = rows_per_pass(config.max_sequences, _MOST_ROWS, steady=model.steady)
        sampler = Sampler()
        if native is not None:
            sampler = Sampler(exponentials(native), from_scores(native), log_probabilities(native))
        return cls(ready, model, cache, made, sampler, rows)

    def submit(self, batch: Batch) -> StepOutput:
        """Carry out copies, then run chunks and rows, and draw; all of it is done when this returns."""
        with torch.inference_mode():
            if batch.copies:
                self._cache.copy_blocks(batch.copies)
            if not batch.chunks and not batch.rows:
                return StepOutput()
            logits: list[torch.Tensor] = []
            places: dict[int, int] = {}  # by sequence, the row of all these logits to draw from
            prompt_logprobs: dict[int, tuple[Logprobs, ...]] = {}
            pooled: dict[int, tuple[float, ...]] = {}
            for part in passes(batch, self._rows_per_pass):
                x = self._forward(part)
                sources, which = drawn_from(part.batch)
                first = sum(map(len, logits))
                places |= {draw.sequence: first + i for draw, i in zip(part.batch.draws, which, strict=True)}
                if which:
                    logits.append(self._logits(x, sources + sources[-1:] * (len(part.rows) - len(sources))))
                prompt_logprobs |= self._prompt_logprobs(part.batch, x)
                pooled |= self._pooled(part.batch, x)
            output = StepOutput()
            if draws := batch.draws:
                joined = logits[0] if len(logits) == 1 else torch.cat(logits)
                output = self._sampler.sample(joined, [places[draw.sequence] for draw in draws], draws, batch.masks)
            if prompt_logprobs or pooled:
                return replace(output, prompt_logprobs=prompt_logprobs, pooled=pooled)
            return output

    def _logits(self, x: torch.Tensor, sources: list[int]) -> torch.Tensor:
        """Return the logits [N, V] after the given tokens of a pass."""
        every = sources == list(range(len(x)))
        return self._model.logits(x if every else x[torch.tensor(sources)])

    def _forward(self, part: Pass) -> torch.Tensor:
        """Return the residual stream [T, H] after the last layer: the chunks' tokens first, then the rows'.

        Only the tokens of `wanted` can be relied on.
        """
        tokens: list[int | None] = []  # never None, as steps do not overlap here; torch would not accept it
        positions: list[int] = []
        for chunk in part.batch.chunks:
            tokens += chunk.tokens
            positions += range(chunk.start, chunk.start + len(chunk.tokens))
        tokens += [row.token for row in part.rows]
        positions += [row.position for row in part.rows]
        by_adapter = adapted(replace(part.batch, rows=part.rows))
        adapters = [TokensOf(name, torch.tensor(mine)) for name, mine in by_adapter.items()]
        return self._backend.run(part, torch.tensor(tokens), torch.tensor(positions), adapters)

    def _prompt_logprobs(self, batch: Batch, x: torch.Tensor) -> dict[int, tuple[Logprobs, ...]]:
        """Return the prompt log probabilities of the chunks with next_tokens, by sequence.

        Logits are computed for a slice of positions at a time.
        """
        by_sequence: dict[int, tuple[Logprobs, ...]] = {}
        size = positions(self.ready.vocab_size)
        for chunk, begin in chunks_at(batch):
            own: list[Logprobs] = []
            for start in range(0, len(chunk.next_tokens), size):
                followers = chunk.next_tokens[start : start + size]
                logits = self._model.logits(x[begin + start : begin + start + len(followers)])
                own += self._sampler.score(
                    logits, [(i, token, chunk.prompt_logprobs) for i, token in enumerate(followers)]
                )
            if own:
                by_sequence[chunk.sequence] = tuple(own)
        return by_sequence

    def _pooled(self, batch: Batch, x: torch.Tensor) -> dict[int, tuple[float, ...]]:
        """Return the pooled hidden states that chunks ask for, by sequence: their sum, or the prompt's last one."""
        vectors: dict[int, tuple[float, ...]] = {}
        for chunk, begin in chunks_at(batch):
            end = begin + len(chunk.tokens)
            if chunk.pooling == "mean":
                vectors[chunk.sequence] = tuple(self._model.hidden(x[begin:end]).float().sum(0).tolist())
            elif chunk.pooling == "last" and chunk.last:
                vectors[chunk.sequence] = tuple(self._model.hidden(x[end - 1 : end])[0].tolist())
        return vectors


def _cpu_backend(
    config: EngineConfig, native: Kernels | None, model: Model, cache: KvCache, *, emulated: bool
) -> NativeBackend | TorchBackend:
    """Return the native backend if there are kernels that support this model, otherwise torch's.

    emulated: the processor has no products in bfloat16. Raises ConfigError if the settings ask for the native backend
    and it does not support this model.
    """
    positions = min(model.context, cache.tokens)
    table = None if model.frequencies is None else rotations(model.frequencies, positions)
    if native is not None and table is not None and takes(model, deterministic=config.deterministic):
        return NativeBackend(model, cache, native, table, deterministic=config.deterministic)
    if config.kernels == "native":
        mode = " in deterministic mode" if config.deterministic else ""
        raise ConfigError(
            f"kernels is native, which does not support this model{mode}: set it to auto, which uses torch's kernels"
        )
    attention = Attention(
        model.attention,
        cache,
        FIXED_SPAN if config.deterministic else SPAN,
        deterministic=config.deterministic,
        in_place=None if config.deterministic or (cache.dtype == torch.bfloat16 and not emulated) else _IN_PLACE,
    )
    return TorchBackend(model, attention, table, cache.dtype, deterministic=config.deterministic)
