"""Time products of few rows with a layer's weights: torch's, and the alternatives to engine/kernels/launch.py's tiles.

A timed call makes as many launches as a model has layers, each with weights of its own, so that no cache holds them and
the gaps between launches count as they do in a step. Every alternative's result is compared with float64.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from bench.gpu import references
from bench.gpu.clocks import Clock, CudaClock, DryClock
from bench.gpu.run import Run
from bench.gpu.table import columns
from engine.kernels import launch
from engine.kernels.activation import silu_mul
from engine.kernels.few_rows import product
from engine.kernels.launch import FewRows
from engine.kernels.norms import rms_norm

_EPS = 1e-6
_BYTES = 200 << 20  # of weights that a timed call reads, several times an L2
_SHARED = 227 << 10  # bytes of shared memory that a program can have


@dataclass(frozen=True, slots=True)
class Form:
    """What is fused with a product."""

    normed: bool = False
    gated: bool = False
    adds: bool = False


QKV, ADDED, GATE_UP = Form(normed=True), Form(adds=True), Form(normed=True, gated=True)


@dataclass(frozen=True, slots=True)
class Product:
    """A product of a layer; columns: of its result, of which each has two columns of weights if it is gated."""

    name: str
    columns: int
    depth: int
    form: Form

    @property
    def height(self) -> int:
        """Rows of the weight."""
        return self.columns * (2 if self.form.gated else 1)


PRODUCTS = (
    Product("Qwen3-0.6B qkv", 4096, 1024, QKV),
    Product("Qwen3-0.6B o", 1024, 2048, ADDED),
    Product("Qwen3-0.6B gate_up", 3072, 1024, GATE_UP),
    Product("Qwen3-0.6B down", 1024, 3072, ADDED),
    Product("Llama-3.1-8B qkv", 6144, 4096, QKV),
    Product("Llama-3.1-8B o", 4096, 4096, ADDED),
    Product("Llama-3.1-8B gate_up", 14336, 4096, GATE_UP),
    Product("Llama-3.1-8B down", 4096, 14336, ADDED),
)
_DRY = (
    Product("tiny qkv", 48, 40, QKV),
    Product("tiny o", 32, 40, ADDED),
    Product("tiny gate_up", 24, 32, GATE_UP),
)
ROWS = (1, 8, 32, 64)
SHAPES = (
    FewRows(8, 128, 4, 4),
    FewRows(8, 64, 8, 4),
    FewRows(16, 32, 4, 4),
    FewRows(16, 64, 4, 3),
    FewRows(16, 64, 4, 5),
    FewRows(16, 128, 4, 3),
    FewRows(16, 64, 8, 4),
    FewRows(32, 64, 4, 4),
    FewRows(64, 64, 4, 3),
    FewRows(16, 64, 4, 4, 4),
    FewRows(32, 64, 4, 3, 4),
    FewRows(64, 64, 4, 3, 8),
)


def _fits(form: Form, rows: int, shape: FewRows) -> bool:
    """Whether a program has the shared memory and the registers, and the product can be shared among programs."""
    tile, accumulators = launch.few_rows_tile(rows), 2 if form.gated else 1
    step = shape.warps * shape.depth * (tile * (4 if form.normed else 2) + 2 * accumulators * shape.columns + 4)
    fits = step * (shape.stages - 1) <= _SHARED and tile * shape.columns * accumulators <= 4096
    return fits and (shape.parts == 1 or form.adds)


@dataclass(slots=True)
class _Data:
    """The operands of a timed call: one input, and several weights."""

    x: torch.Tensor  # [T, K] float32 for a norm, else in the weights' dtype
    rounded: torch.Tensor  # [T, K] in the weights' dtype
    norm: torch.Tensor  # [K]
    weights: Sequence[torch.Tensor]  # [N or 2 * N, K] each
    out: torch.Tensor  # [T, N]
    raw: torch.Tensor  # [T, N or 2 * N], before a gate

    @classmethod
    def of(cls, clock: Clock, one: Product, rows: int, weights: Sequence[torch.Tensor]) -> _Data:
        x = torch.randn(rows, one.depth, device=clock.device)
        rounded = x.to(clock.dtype)
        return cls(
            x if one.form.normed else rounded,
            rounded,
            torch.rand(one.depth, device=clock.device) + 0.5,
            weights,
            torch.zeros(rows, one.columns, dtype=torch.float32 if one.form.adds else clock.dtype, device=clock.device),
            torch.empty(rows, one.height, dtype=clock.dtype, device=clock.device),
        )

    def expected(self, form: Form) -> torch.Tensor:
        x = references.rms_norm(self.x, self.norm, _EPS) if form.normed else self.x.double()
        y = x @ self.weights[0].double().T
        if not form.gated:
            return y
        gate, up = y.chunk(2, -1)
        return gate * torch.sigmoid(gate) * up


def _fused(data: _Data, form: Form, shape: FewRows | None, weight: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    norm = data.norm if form.normed else None
    return product(data.x, weight, out, norm=norm, eps=_EPS, gated=form.gated, adds=form.adds, shape=shape)


def _linear(data: _Data, weight: torch.Tensor) -> torch.Tensor:
    return F.linear(data.rounded, weight)


def _apart(data: _Data, form: Form, weight: torch.Tensor) -> torch.Tensor:
    """Return the product by torch, with the norm before it or the gate behind it by kernels of their own."""
    x = rms_norm(data.x, None, data.norm, _EPS, torch.empty_like(data.rounded)) if form.normed else data.rounded
    y = F.linear(x, weight)
    return silu_mul(y, y.new_empty(len(y), y.shape[1] // 2)) if form.gated else y


def _calls(one: Callable[[torch.Tensor], object], weights: Sequence[torch.Tensor]) -> Callable[[], None]:
    def call() -> None:
        for weight in weights:
            one(weight)

    return call


def _microseconds(clock: Clock, data: _Data, one: Callable[[torch.Tensor], object]) -> float:
    return clock.time([_calls(one, data.weights)], 9).seconds * 1e6 / len(data.weights)


def _alternative(clock: Clock, data: _Data, form: Form, shape: FewRows | None, expected: torch.Tensor) -> float:
    """Return the microseconds of one product; RuntimeError if it is wrong."""
    fresh = torch.zeros_like(data.out) if form.adds else torch.full_like(data.out, torch.nan)
    if not (error := references.error(_fused(data, form, shape, data.weights[0], fresh), expected)) <= 1e-2:
        raise RuntimeError(f"the error is {error:.3g}")
    return _microseconds(clock, data, lambda weight: _fused(data, form, shape, weight, data.out))


def _compile(dry: bool, todo: tuple[Form, int, FewRows]) -> str:
    """Compile an alternative in this process, for the cache on disk; return why that failed, or nothing.

    Sizes are small: the compiler is told only that they are multiples of 16 and of a step.
    """
    Run.prepare()
    device, dtype = torch.device("cpu" if dry else "cuda"), torch.float32 if dry else torch.bfloat16
    form, rows, shape = todo
    one, began = Product("", 256, 2 * shape.warps * shape.depth, form), time.monotonic()
    weight = torch.zeros(one.height, one.depth, dtype=dtype, device=device)
    x = torch.zeros(rows, one.depth, dtype=torch.float32 if form.normed else dtype, device=device)
    out = torch.zeros(rows, one.columns, dtype=torch.float32 if form.adds else dtype, device=device)
    norm = torch.zeros(one.depth, device=device) if form.normed else None
    try:
        product(x, weight, out, norm=norm, eps=_EPS, gated=form.gated, adds=form.adds, shape=shape)
        if not dry:
            torch.cuda.synchronize()
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"[:100]
    taken = time.monotonic() - began
    if taken > 5:
        print(f"compiled {form}, {rows} rows, {shape} in {taken:.1f} s", file=sys.stderr, flush=True)
    return ""


def _text(shape: FewRows) -> str:
    return " ".join([f"{name}={getattr(shape, name)}" for name in shape.__slots__])


def sweep(dry: bool, processes: int) -> Iterator[dict[str, object]]:
    """Yield one record per product, number of rows and alternative, after printing a table per product."""
    Run.prepare()
    clock: Clock = DryClock() if dry else CudaClock()
    listed, many, shapes = (_DRY, (1, 17), SHAPES[-1:]) if dry else (PRODUCTS, ROWS, SHAPES)
    tiles = sorted({launch.few_rows_tile(rows) for rows in many})
    todo = [(form, tile, shape) for form in (QKV, ADDED, GATE_UP) for tile in tiles for shape in shapes]
    todo = [one for one in todo if _fits(*one)]
    own = {
        (one.form, launch.few_rows_tile(rows), _own(one, rows)): None for one in listed for rows in many
    }  # ordered, and each once
    todo += [one for one in own if one not in todo]
    if dry:
        wrong = dict.fromkeys(todo, "")
    else:
        with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
            wrong = dict(zip(todo, pool.map(partial(_compile, dry), todo), strict=True))
    for one in listed:
        yield from _table(clock, one, many, shapes, wrong)


def _own(one: Product, rows: int) -> FewRows:
    return launch.few_rows(rows, one.columns, one.depth, gated=one.form.gated, normed=one.form.normed)


def _table(
    clock: Clock,
    one: Product,
    many: Sequence[int],
    shapes: Sequence[FewRows],
    wrong: dict[tuple[Form, int, FewRows], str],
) -> Iterator[dict[str, object]]:
    number = 2 if clock.dry else max(2, -(-_BYTES // (2 * one.height * one.depth)))
    weights = [
        torch.randn(one.height, one.depth, dtype=clock.dtype, device=clock.device) / one.depth**0.5
        for _ in range(number)
    ]
    size = weights[0].nbytes
    cells: dict[str, list[str]] = {}
    notes: dict[str, str] = {}
    for rows in many:
        data = _Data.of(clock, one, rows, weights)
        padded = _Data.of(clock, one, max(rows, 16), weights)
        expected = data.expected(one.form)
        ways: dict[str, Callable[[], float]] = {
            "F.linear": partial(_microseconds, clock, data, partial(_linear, data)),
            "F.linear of at least 16 rows": partial(_microseconds, clock, padded, partial(_linear, padded)),
            "norm, F.linear, gate": partial(_microseconds, clock, data, partial(_apart, data, one.form)),
            "the table's": partial(_alternative, clock, data, one.form, None, expected),
        }
        whys = {"the table's": wrong[one.form, launch.few_rows_tile(rows), _own(one, rows)]}
        for shape in shapes:
            if why := wrong.get((one.form, launch.few_rows_tile(rows), shape), "does not fit"):
                whys[_text(shape)] = why
            ways[_text(shape)] = partial(_alternative, clock, data, one.form, shape, expected)
        for name, way in ways.items():
            taken, why = None, whys.get(name, "")
            if not why:
                try:
                    taken = way()
                except Exception as error:
                    why = f"{type(error).__name__}: {' '.join(str(error).split())}"[:100]
            told = "-" if taken is None else f"{taken:.1f} ({size / taken / 1e6:.2f})"
            cells.setdefault(name, []).append(told)
            if why and why != "does not fit":
                notes[name] = why
            yield {"product": one.name, "rows": rows, "way": name, "us": taken, "why": why}
    head = (f"{one.name} {one.height}x{one.depth}, us (TB/s)", *[f"{rows} rows" for rows in many], "")
    lines = [(name, *told, notes.get(name, "")) for name, told in cells.items() if set(told) != {"-"} or name in notes]
    print(columns([head, *lines]) + "\n", flush=True)
