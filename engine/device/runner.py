"""A loaded model on a device: takes a Batch without waiting, and returns its tokens when they are asked for.

A step is planned on the host as small arrays, which go over in one copy. Then its kernels are queued, and the host is
free for the next step while they run. Drawn tokens stay on the device: a row whose token is None takes what the step
before drew for its sequence. The host waits for one thing only: the end of the step whose result is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from engine.attention.cache import KvCache
from engine.backends import Backend, round_once
from engine.batch import Batch, Draw, StepOutput
from engine.config import EngineConfig, cpu_pool
from engine.device.attention import DeviceAttention, Rotations
from engine.device.buckets import buckets, capacity
from engine.device.continuation import LINES, Continuation
from engine.device.draws import DrawPlan
from engine.device.frame import Arrays, Frame, Views
from engine.device.graphs import Graphs, Record, Recorded, Step, cuda_recorder
from engine.device.memory import KV_FRACTION, find_room, largest_batch
from engine.device.ops import TritonOps
from engine.device.packing import pack_chunks, pack_tokens
from engine.device.prompt_logprobs import PromptLogprobs
from engine.device.sampler import DeviceSampler, Drawn
from engine.device.transfer import Buffers, Fetched
from engine.errors import ConfigError
from engine.kernels import launch
from engine.kernels.copy_blocks import copy_blocks
from engine.kernels.draw_table import DRAW
from engine.kv_spans import FIXED_SPAN
from engine.models.load import load_model
from engine.models.lora import TokensOf
from engine.models.model import Model
from engine.models.rope import cosines_and_sines
from engine.models.spec import kv_bytes_per_token
from engine.passes import Pass, passes, rows_per_pass
from engine.readiness import ready_of
from engine.resources import ram
from engine.token_layout import adapted, chunks_at, drawn_from

_MOST_ROWS = 128  # rows of a pass in deterministic mode: a GPU computes so many in little more time than one
_BESIDE = 1 << 20  # bytes behind a recorded step's arrays and masks: for draws, copies


@dataclass(frozen=True, slots=True)
class DevicePending:
    """A step in flight."""

    drawn: Drawn | None
    prompt_logprobs: Mapping[int, PromptLogprobs]
    pooled: Mapping[int, Fetched]

    def result(self) -> StepOutput:
        """Wait for the step and return its output."""
        output = self.drawn.collect() if self.drawn else StepOutput()
        logprobs = {sequence: one.collect() for sequence, one in self.prompt_logprobs.items()}
        pooled = {sequence: tuple(sums.tensor().tolist()) for sequence, sums in self.pooled.items()}
        return replace(output, prompt_logprobs=logprobs, pooled=pooled) if logprobs or pooled else output


@dataclass(frozen=True, slots=True)
class _Part:
    """What runs in one pass through the model."""

    batch: Batch
    rows: int
    """The number of rows, the batch's own and the padding."""
    recorded: Recorded | None
    """None if every launch is made anew."""
    sources: Sequence[int]
    """The tokens that are drawn from."""
    which: Sequence[int]
    """Per draw, its row of the pass's logits."""
    logits: int
    """How many rows of logits the pass has."""

    def adapted(self) -> dict[str, list[int]]:
        """Like engine.token_layout.adapted; padding rows run like the last row."""
        rows = self.batch.rows
        return adapted(replace(self.batch, rows=rows + rows[-1:] * (self.rows - len(rows))))


class DeviceRunner:
    """Runs steps in the order in which they are submitted, one call at a time."""

    def __init__(
        self,
        config: EngineConfig,
        model: Model,
        cache: KvCache,
        *,
        overlaps: bool,
        record: Record | None = None,
        adds: bool | None = None,
    ) -> None:
        """record: records decoding steps; if it is None, every launch of every step is made anew.

        adds: whether steps without chunks may use the kernel for products of few rows; by default if they are recorded
        on a GPU, in 16-bit numbers. Never in deterministic mode.
        """
        self.overlaps = overlaps
        self.ready = ready_of(config, model, cache, "triton")
        self._model = model
        self._cache = cache
        # Several threads may call, each with its own current device and stream; steps are ordered on one stream only.
        self._stream = torch.cuda.current_stream(cache.device) if cache.device.type == "cuda" else None
        self._rotations: Rotations | None = None
        if model.frequencies is not None:
            tables = cosines_and_sines(model.frequencies, min(model.context, cache.tokens))
            self._rotations = Rotations(*(table.to(cache.device) for table in tables))
        self._rows_per_pass: int | None = None  # decoding rows of one pass, in deterministic mode
        if config.deterministic:
            self._rows_per_pass = rows_per_pass(config.max_sequences, _MOST_ROWS, steady=model.steady)
        if adds is None:  # recording also compiles it for every number of rows
            adds = record is not None and cache.device.type == "cuda" and cache.dtype.itemsize == 2
        self._adds = adds and not config.deterministic
        sizes = (self._rows_per_pass,) if self._rows_per_pass else buckets(config.max_sequences)
        places = {rows: capacity(rows, model.context, FIXED_SPAN) for rows in sizes}
        most = max(places.values())
        self._attention = DeviceAttention(model.attention, cache, max(places), most, cuts=config.deterministic)
        self._sampler = DeviceSampler(cache.device, model.vocab)
        # In deterministic mode a step has more rows than there may be sequences.
        self._last = torch.zeros(max(config.max_sequences, *sizes), dtype=torch.int64, device=cache.device)
        self._drawn: dict[int, int] = {}  # by sequence, the index in `_last`
        frames = {rows: self._frame(rows, most) for rows, most in places.items()} if record else {}
        masks = config.max_sequences * (model.vocab // 8 + 1)
        longest = max([frame.size for frame in frames.values()], default=0)
        self._buffers = Buffers(longest + masks + _BESIDE, cache.device)
        self._graphs: Graphs | None = None
        self._continuation: Continuation | None = None  # of the step before, if it can be continued
        if record:
            with torch.inference_mode():
                self._graphs = Graphs(frames, self._idle, self._drawing, record)

    @classmethod
    def load(cls, config: EngineConfig, backend: Backend) -> DeviceRunner:
        """Load the model, find memory for its cache, record its steps, and compile what draws from them.

        Raises ModelError for files that cannot be run, ConfigError for settings that do not fit the model.
        """
        try:
            return cls._load(config, backend)
        except torch.OutOfMemoryError as error:
            tokens = config.batch_tokens(backend.device.type)
            raise ConfigError(
                f"the device's memory is too small for the model, the KV cache and a step of {tokens} tokens:"
                " lower max_batch_tokens, max_sequences, num_blocks or kv_fraction"
            ) from error
        except launch.TooLarge as error:
            raise ConfigError(
                f"a kernel of this model does not fit the device ({error.name}: it needs {error.required} of"
                f" {error.limit}): set device to cpu"
            ) from error

    @classmethod
    def _load(cls, config: EngineConfig, backend: Backend) -> DeviceRunner:
        device = backend.device
        round_once()
        model = load_model(Path(config.model), backend.dtype, config.max_model_len, config.adapters, device)
        token_bytes = kv_bytes_per_token(model.attention, backend.dtype.itemsize)

        def cache(blocks: int) -> KvCache:
            return KvCache(model.attention, blocks, config.block_size, backend.dtype, device)

        def largest_step(settings: EngineConfig) -> int:
            batch = largest_batch(settings, model.context)
            blocks = sum([len(chunk.blocks) for chunk in batch.chunks]) + len(batch.rows)
            cls(settings, model, cache(blocks), overlaps=False).submit(batch).result()
            return blocks * settings.block_size * token_bytes

        if device.type == "cpu":
            blocks = config.kv_blocks(token_bytes, ram(), cap=cpu_pool(model.context * token_bytes))
            return cls(config, model, cache(blocks), overlaps=False)
        config, memory = find_room(config, largest_step)
        blocks = config.kv_blocks(token_bytes, memory, KV_FRACTION)
        record = cuda_recorder() if config.cuda_graphs and model.steady else None
        runner = cls(config, model, cache(blocks), overlaps=True, record=record)
        runner.warm_up(config)
        return runner

    def warm_up(self, config: EngineConfig) -> None:
        """Run the largest step that the cache holds, and draws of every kind.

        This compiles everything that steps launch, whatever they contain, and allocates the memory that they need, so
        no later step waits for either. Writes to the cache, whose blocks must be free. `config`: the one that the
        runner was made with.
        """
        blocks = self._cache.blocks
        batch = largest_batch(config, self._model.context, blocks)
        self.submit(replace(batch, copies=((0, blocks - 1),))).result()
        for rows in (1, 2):  # attention of one row, and of few, has kernels of its own
            few = replace(config, max_sequences=rows, max_batch_tokens=rows + config.block_size)
            self.submit(largest_batch(few, self._model.context, blocks)).result()
        with torch.inference_mode():
            self._sampler.warm_up(self._cache.dtype)

    def submit(self, batch: Batch) -> DevicePending:
        """Queue copies, then chunks and rows in one pass (in deterministic mode several), and draws.

        Raises if nothing of it runs.
        """
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            return self._submit(batch)

    def _submit(self, batch: Batch) -> DevicePending:
        going, self._continuation = self._continuation, None
        if going is None or not going.follow(batch):
            return self._planned(batch)
        self._buffers.send_image(going.image)
        going.recorded.recording.replay()
        self._continuation = going
        return DevicePending(self._drawn_by(going.recorded, going.plan), {}, {})

    def _planned(self, batch: Batch) -> DevicePending:
        parts = [self._part(one) for one in passes(batch, self._rows_per_pass)]
        draws = batch.draws
        drawing = self._sampler.plan(_logit_rows(parts, draws), draws, batch.masks) if draws else None
        if drawing and len(parts) == 1 and _every_row_draws(parts[0], drawing):
            pending = DevicePending(self._whole(batch, parts[0], drawing), {}, {})
            self._drawn = {draw.sequence: number for number, draw in enumerate(draws)}
            return pending
        logits: list[torch.Tensor] = []
        prompt_logprobs: dict[int, PromptLogprobs] = {}
        pooled: dict[int, Fetched] = {}
        for number, part in enumerate(parts):
            arrays = self._arrays(part, batch.copies if number == 0 else ())
            if drawing and part is parts[-1]:
                arrays |= drawing.arrays
            there, x, _ = self._run(part, arrays)
            if part.logits:
                logits.append(self._model.logits(x[there["drawn_from"]] if part.batch.chunks else x))
            prompt_logprobs |= self._prompt_logprobs(part.batch, x, there)
            pooled |= self._pooled(part.batch, x)
        drawn = None
        if drawing:
            joined = logits[0] if len(logits) == 1 else torch.cat(logits)
            drawn = self._sampler.launch(joined, drawing, there, self._last)
        self._drawn = {draw.sequence: number for number, draw in enumerate(draws)}
        return DevicePending(drawn, prompt_logprobs, pooled)

    def _whole(self, batch: Batch, part: _Part, drawing: DrawPlan) -> Drawn:
        """Run a batch of one part that may be recorded whole, its draws included."""
        arrays = self._arrays(part, batch.copies) | {LINES: drawing.lines(part.rows)}
        there, x, recorded = self._run(part, arrays)
        if recorded is None:
            return self._sampler.launch(self._model.logits(x), drawing, {"draws": there[LINES]}, self._last)
        arrays.pop("copies", None)
        if (newest := self._attention.newest(arrays)) is not None:
            size = self._cache.block_size
            self._continuation = Continuation(batch.number, recorded, drawing, arrays, newest, size)
        return self._drawn_by(recorded, drawing)

    def _drawn_by(self, recorded: Recorded, drawing: DrawPlan) -> Drawn:
        recorded.drawing.replay()
        count = len(drawing.draws)
        return Drawn(self._last[:count], drawing, Fetched(recorded.drawing.output[:count]))

    def _part(self, one: Pass) -> _Part:
        batch, rows = one.batch, len(one.rows)
        sources, which = drawn_from(batch)
        if batch.chunks:
            return _Part(batch, rows, None, sources, which, len(sources))
        recorded = None
        if self._graphs and not any(row.adapter is not None for row in batch.rows):
            recorded = self._graphs.find(rows)
            rows = recorded.rows if recorded else rows
        # The logits of all rows are computed, whether they are drawn from or not.
        return _Part(batch, rows, recorded, sources, sources, rows if sources else 0)

    def _arrays(self, part: _Part, copies: Sequence[tuple[int, int]]) -> Arrays:
        """Return the arrays of a part for the device, and of the copies that are made before it."""
        batch = part.batch
        arrays = pack_tokens(batch, self._cache.block_size, self._drawn, part.rows)
        arrays |= self._attention.arrays(batch, part.rows)
        if batch.chunks:
            arrays |= pack_chunks(batch, part.sources)
        if copies:
            arrays["copies"] = np.array(copies, dtype=np.int32)
        for name, tokens in part.adapted().items():
            arrays[f"adapter {name}"] = np.array(tokens, dtype=np.int64)
        return arrays

    def _run(self, part: _Part, arrays: Arrays) -> tuple[Views, torch.Tensor, Recorded | None]:
        """Send the arrays, then queue copies and layers; return the arrays' views on the device, the result of
        Model.run, and what was replayed.
        """
        batch, recorded = part.batch, part.recorded
        frame = Frame.of(arrays, recorded.frame if recorded else None)
        if recorded and not (recorded.frame.takes(arrays) and self._buffers.fits(frame)):
            recorded, frame = None, Frame.of(arrays)
        there = self._buffers.send(frame, arrays)
        if "copies" in arrays:
            for pool in self._cache.pools:
                copy_blocks(pool, there["copies"], self._cache.block_size)
        if recorded:
            recorded.recording.replay()
            return there, recorded.recording.output, recorded
        adapters = [TokensOf(name, there[f"adapter {name}"]) for name in part.adapted()]
        return there, self._forward(there, sum([len(chunk.tokens) for chunk in batch.chunks]), adapters), None

    def _forward(self, there: Views, prompt_tokens: int, adapters: Sequence[TokensOf] = ()) -> torch.Tensor:
        """Return the result of Model.run for the step whose arrays are on the device."""
        sources, positions = there["sources"], there["positions"]
        drawn = self._last.index_select(0, sources.clamp(min=0))
        tokens = torch.where(sources >= 0, drawn, there["tokens"])
        plan = self._attention.plan(there, prompt_tokens)
        adds = self._adds and not prompt_tokens
        ops = TritonOps(self._attention, plan, self._rotations, positions, self._cache.dtype, adds)
        return self._model.run(tokens, positions, ops, adapters)

    def _frame(self, rows: int, places: int) -> Frame:
        """Return the places of a recorded step's arrays."""
        tokens = pack_tokens(Batch(), self._cache.block_size, {}, rows)
        lines = np.zeros((rows, len(DRAW.names or ())), dtype=np.int64)
        return Frame.of(tokens | self._attention.longest(rows, places) | {LINES: lines})

    def _idle(self, frame: Frame) -> Step:
        """Return a step over the arrays at a frame's place, which at first contain nothing to do."""
        there = self._buffers.send(frame, frame.zeros())
        return partial(self._forward, there, 0)

    def _drawing(self, frame: Frame, x: torch.Tensor) -> Step:
        """Return the draws from the result of a frame's step."""
        lines = self._buffers.views(frame)[LINES]
        drawn = torch.zeros(len(lines), dtype=torch.int32, device=x.device)

        def draw() -> torch.Tensor:
            self._sampler.draw(self._model.logits(x), lines, drawn, self._last)
            return drawn

        return draw

    def _prompt_logprobs(self, batch: Batch, x: torch.Tensor, there: Views) -> dict[int, PromptLogprobs]:
        """Return the prompt log probabilities of the chunks with next_tokens, by sequence."""
        logprobs: dict[int, PromptLogprobs] = {}
        at = 0
        for chunk, begin in chunks_at(batch):
            if count := len(chunk.next_tokens):
                followers = there["followers"][at : at + count]
                mine = x[begin : begin + count]
                logprobs[chunk.sequence] = PromptLogprobs(mine, followers, chunk.prompt_logprobs, self._model)
                at += count
        return logprobs

    def _pooled(self, batch: Batch, x: torch.Tensor) -> dict[int, Fetched]:
        """Return the pooled hidden states that chunks ask for, by sequence: their sum, or the prompt's last one."""
        vectors: dict[int, Fetched] = {}
        for chunk, begin in chunks_at(batch):
            end = begin + len(chunk.tokens)
            if chunk.pooling == "mean":
                vectors[chunk.sequence] = Fetched(self._model.hidden(x[begin:end]).float().sum(0))
            elif chunk.pooling == "last" and chunk.last:
                vectors[chunk.sequence] = Fetched(self._model.hidden(x[end - 1 : end])[0].float())
        return vectors


def _every_row_draws(part: _Part, drawing: DrawPlan) -> bool:
    """Whether a recorded step's rows all draw, by their scores alone."""
    rows = len(part.batch.rows)
    return part.recorded is not None and drawing.plain and drawing.rows == tuple(range(rows))


def _logit_rows(parts: Sequence[_Part], draws: Sequence[Draw]) -> list[int]:
    """Return, per draw, its row of the parts' logits, which are concatenated."""
    rows: dict[int, int] = {}
    before = 0
    for part in parts:
        mine = zip(part.batch.draws, part.which, strict=True)
        rows |= {draw.sequence: before + row for draw, row in mine}
        before += part.logits
    return [rows[draw.sequence] for draw in draws]
