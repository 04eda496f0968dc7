"""Time products of few rows that are added to the residual stream: torch's, and the alternatives to launch.add_product.

A timed call makes as many launches as a model has layers, each with weights of its own, so that no cache holds them and
the gaps between launches count as they do in a step. Every alternative's result is compared with float64.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from bench.gpu import references
from bench.gpu.clocks import Clock, CudaClock, DryClock
from bench.gpu.run import Run
from bench.gpu.table import columns, failure, fields_text
from engine.kernels import launch
from engine.kernels.add_product import add_product
from engine.kernels.launch import AddProduct

_BYTES = 200 << 20  # of weights that a timed call reads, several times an L2
_SHARED = 227 << 10  # bytes of shared memory that a program can have


@dataclass(frozen=True, slots=True)
class Product:
    """A product of a layer."""

    name: str
    columns: int
    depth: int


PRODUCTS = (
    Product("Qwen3-0.6B o", 1024, 2048),
    Product("Qwen3-0.6B down", 1024, 3072),
    Product("Llama-3.1-8B o", 4096, 4096),
    Product("Llama-3.1-8B down", 4096, 14336),
)
_DRY = (Product("tiny o", 32, 40),)
ROWS = (1, 8, 32)
SHAPES = (
    AddProduct(8, 128, 4, 4),
    AddProduct(8, 64, 8, 4),
    AddProduct(16, 64, 4, 5),
    AddProduct(16, 128, 4, 3),
    AddProduct(32, 64, 4, 4),
    AddProduct(64, 64, 4, 3),
)
_Way = Callable[[torch.Tensor], object]


def _fits(rows: int, shape: AddProduct) -> bool:
    """Whether a program has the shared memory."""
    step = shape.warps * shape.depth * (launch.row_tile(rows) + shape.columns) * 2
    return step * (shape.stages - 1) <= _SHARED


def _calls(one: _Way, weights: Sequence[torch.Tensor]) -> Callable[[], None]:
    def call() -> None:
        for weight in weights:
            one(weight)

    return call


def _microseconds(clock: Clock, weights: Sequence[torch.Tensor], one: _Way) -> float:
    return clock.time([_calls(one, weights)], 9).seconds * 1e6 / len(weights)


def _alternative(clock: Clock, x: torch.Tensor, weights: Sequence[torch.Tensor], shape: AddProduct | None) -> float:
    """Return the microseconds of one product; RuntimeError if it is wrong."""
    out = torch.zeros(len(x), len(weights[0]), device=clock.device)
    expected = x.double() @ weights[0].double().T
    references.require(add_product(x, weights[0], None, out, shape), expected)
    return _microseconds(clock, weights, lambda weight: add_product(x, weight, None, out, shape))


def _compile(dry: bool, todo: tuple[int, AddProduct]) -> str:
    """Compile an alternative in this process, for the cache on disk; return why that failed, or nothing.

    Sizes are small: the compiler is told only that they are multiples of 16 and of a step.
    """
    Run.prepare()
    device, dtype = torch.device("cpu" if dry else "cuda"), torch.float32 if dry else torch.bfloat16
    rows, shape = todo
    depth = 2 * shape.warps * shape.depth
    try:
        x, weight = (torch.zeros(count, depth, dtype=dtype, device=device) for count in (rows, 256))
        add_product(x, weight, None, torch.zeros(rows, 256, device=device), shape)
        if not dry:
            torch.cuda.synchronize()
    except Exception as error:
        return failure(error)
    return ""


def sweep(dry: bool, processes: int) -> Iterator[dict[str, object]]:
    """Yield one record per product, number of rows and alternative, after printing a table per product."""
    Run.prepare()
    clock: Clock = DryClock() if dry else CudaClock()
    listed, many, shapes = (_DRY, (1, 17), SHAPES[:1]) if dry else (PRODUCTS, ROWS, SHAPES)
    todo = [(rows, shape) for rows in many for shape in shapes if _fits(rows, shape)]
    if dry:
        wrong = dict.fromkeys(todo, "")
    else:
        with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
            wrong = dict(zip(todo, pool.map(partial(_compile, dry), todo), strict=True))
    for one in listed:
        yield from _table(clock, one, many, shapes, wrong)


def _table(
    clock: Clock,
    one: Product,
    many: Sequence[int],
    shapes: Sequence[AddProduct],
    wrong: dict[tuple[int, AddProduct], str],
) -> Iterator[dict[str, object]]:
    number = 2 if clock.dry else max(2, -(-_BYTES // (2 * one.columns * one.depth)))
    weights = [
        torch.randn(one.columns, one.depth, dtype=clock.dtype, device=clock.device) / one.depth**0.5
        for _ in range(number)
    ]
    size = weights[0].nbytes
    cells: dict[str, list[str]] = {}
    notes: dict[str, str] = {}
    for rows in many:
        x = torch.randn(rows, one.depth, dtype=clock.dtype, device=clock.device)
        ways: dict[str, Callable[[], float]] = {
            "F.linear": partial(_microseconds, clock, weights, partial(F.linear, x)),
            "the table's": partial(_alternative, clock, x, weights, None),
        }
        ways |= {fields_text(shape): partial(_alternative, clock, x, weights, shape) for shape in shapes}
        whys = {fields_text(shape): wrong.get((rows, shape), "does not fit") for shape in shapes}
        for name, way in ways.items():
            taken, why = None, whys.get(name, "")
            if not why:
                try:
                    taken = way()
                except Exception as error:
                    why = failure(error)
            told = "-" if taken is None else f"{taken:.1f} ({size / taken / 1e6:.2f})"
            cells.setdefault(name, []).append(told)
            if why:
                notes[name] = why
            yield {"product": one.name, "rows": rows, "way": name, "us": taken, "why": why}
    head = (f"{one.name} {one.columns}x{one.depth}, us (TB/s)", *[f"{rows} rows" for rows in many], "")
    print(columns([head, *[(name, *told, notes.get(name, "")) for name, told in cells.items()]]) + "\n", flush=True)
