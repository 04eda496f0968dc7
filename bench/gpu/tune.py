"""Time the alternatives to engine/kernels/launch.py's attention tiles on a GPU.

    python bench/gpu/tune.py [--only decode,prefill] [--out FILE] [--dry]

One line per alternative and one column per case, in microseconds; the first line is the table's own entry. Processes
compile the alternatives concurrently beforehand; one that does not compile, or is wrong, says so.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import torch

from bench.gpu import references
from bench.gpu.cases import DRY, FULL, Plan, Shape
from bench.gpu.clocks import Clock, CudaClock, DryClock
from bench.gpu.layer import UNSHARED, Fork, Layer, Tables, attention_spec
from bench.gpu.run import Run
from bench.gpu.table import columns
from engine.attention.tiles import plan_tiles
from engine.batch import Chunk, Row
from engine.kernels import launch
from engine.kernels.launch import Attn, Prefill
from engine.kernels.prefill_attn import prefill_attn

SHAPES = {"32/8/128": Shape(32, 8, 128), "14/2/64": Shape(14, 2, 64)}
DECODE = {
    128: (
        Attn(64, 16, 64, 3, 4, 2),
        Attn(64, 16, 64, 2, 4, 2),
        Attn(64, 16, 64, 2, 4, 3, 168),
        Attn(64, 16, 32, 4, 4, 3, 168),
        Attn(64, 16, 32, 5, 4, 2),
        Attn(64, 16, 64, 5, 4, 1),
        Attn(64, 16, 128, 3, 8, 1),
        Attn(128, 16, 64, 3, 8, 1),
        Attn(128, 16, 64, 4, 8, 1),
        Attn(128, 16, 128, 2, 8, 1),
        Attn(128, 16, 32, 4, 8, 2),
    ),
    64: (
        Attn(64, 16, 64, 4, 4, 3, 168),
        Attn(64, 16, 64, 3, 4, 4, 128),
        Attn(64, 16, 64, 3, 4, 3, 168),
        Attn(64, 16, 64, 5, 4, 2),
        Attn(128, 16, 64, 4, 8, 2),
        Attn(128, 16, 128, 3, 8, 1),
    ),
}
PREFILL = {
    128: (
        Prefill(128, 64, 8, 3),
        Prefill(128, 64, 8, 2),
        Prefill(128, 64, 8, 4),
        Prefill(128, 128, 8, 2),
        Prefill(128, 128, 8, 3),
        Prefill(64, 64, 4, 3),
        Prefill(128, 64, 4, 3),
        Prefill(256, 64, 8, 2),
    ),
    64: (
        Prefill(128, 64, 8, 3),
        Prefill(128, 64, 8, 4),
        Prefill(128, 128, 8, 3),
        Prefill(128, 64, 4, 3),
        Prefill(64, 64, 4, 3),
        Prefill(256, 64, 8, 3),
    ),
}
Tile = Attn | Prefill


def _put(dim: int, tile: Tile) -> None:
    """Make the launch table give this tile to heads of `dim` numbers of 2 bytes."""
    for itemsize in (2, 4):  # 4: the dry run's float32
        if isinstance(tile, Attn):
            launch._ATTN[dim, itemsize] = tile
        else:
            launch._PREFILL[dim, itemsize] = tile


def _forked(plan: Plan, n: int, prefix: int) -> tuple[Fork, int]:
    size, own = plan.block, plan.lengths.own
    left = prefix % size + own
    return Fork(prefix // size, (left,) * n), prefix // size + n * -(-left // size)


def decode(clock: Clock, plan: Plan, shape: Shape, tile: Tile, *, compile_only: bool = False) -> Iterator[float]:
    """Yield the seconds of a layer's decode attention in each case; RuntimeError if a result is wrong."""
    lengths = plan.lengths
    shared = [
        (lengths.narrow, lengths.short),
        (lengths.wide, lengths.short),
        (lengths.widest, lengths.short),
        (lengths.wide, lengths.middle),
        (lengths.wide, lengths.long),
        (lengths.widest, lengths.long),
    ]
    apart = [(1, lengths.short), (1, lengths.middle), (lengths.wide, lengths.short), (lengths.batch, lengths.middle)]
    spec = attention_spec(shape)
    checked = False
    for n, prefix, gate in [(*one, 0) for one in shared] + [(*one, UNSHARED) for one in apart]:
        if gate:
            fork, blocks = None, n * -(-prefix // plan.block)
        else:
            fork, blocks = _forked(plan, n, prefix)
        layer = Layer(spec, blocks, plan.block, clock.dtype, clock.device)
        tables = Tables(blocks, plan.block)
        rows = tables.rows(fork) if fork else [row for _ in range(n) for row in tables.rows(prefix)]
        planned = layer.plan(rows, gate)
        queries = [layer.queries(len(rows)) for _ in range(lengths.sets)]
        layer.attend(queries[0], planned)
        if compile_only:
            clock.wait()
            return
        if not checked:
            planned.poison()
            out = layer.attend(queries[0], planned)
            at = len(rows) - 1
            want = references.attention(
                queries[0][at:], layer.kv, layer.slots(rows[at]), [rows[at].position], layer.spec
            )
            if not (error := references.error(out[at:], want)) <= 1e-2:
                raise RuntimeError(f"the error is {error:.3g}")
            checked = True
        yield clock.time([partial(layer.attend, q, planned) for q in queries], 12).seconds


DECODE_CASES = (
    "2k n=8", "2k n=32", "2k n=128", "8k n=32", "32k n=32", "32k n=128", "2k alone", "8k alone", "2k x32", "8k x64",
)  # fmt: skip


def prefill(clock: Clock, plan: Plan, shape: Shape, tile: Tile, *, compile_only: bool = False) -> Iterator[float]:
    """Yield the seconds of a layer's prefill attention in each case; RuntimeError if a result is wrong."""
    assert isinstance(tile, Prefill)
    lengths, size, device = plan.lengths, plan.block, clock.device
    spec = attention_spec(shape)
    for length in (lengths.short, lengths.middle):
        blocks = -(-length // size)
        layer = Layer(spec, blocks, size, clock.dtype, device)
        table = Tables(blocks, size).take(blocks)
        tiles = plan_tiles([Chunk(0, (0,) * length, 0, table)], tile.queries(spec.heads // spec.kv_heads), size)
        listed, there = torch.from_numpy(tiles.tiles).to(device), torch.from_numpy(tiles.blocks).to(device)
        count = torch.tensor([len(tiles.tiles)], dtype=torch.int32, device=device)
        queries = [layer.queries(length) for _ in range(lengths.sets)]
        out = torch.full((length, spec.heads * spec.head_dim), torch.nan, dtype=clock.dtype, device=device)

        def call(
            q: torch.Tensor,
            layer: Layer = layer,
            listed: torch.Tensor = listed,
            count: torch.Tensor = count,
            there: torch.Tensor = there,
            out: torch.Tensor = out,
        ) -> None:
            prefill_attn(q, layer.kv, listed, count, there, out, block_size=size, scale=spec.scale, shape=tile)

        call(queries[0])
        if compile_only:
            clock.wait()
            return
        last = Row(0, 0, length - 1, table, None)
        at = length - 5
        want = references.attention(queries[0][at:], layer.kv, layer.slots(last), list(range(at, length)), layer.spec)
        if not (error := references.error(out[at:], want)) <= 1e-2:
            raise RuntimeError(f"the error is {error:.3g}")
        yield clock.time([partial(call, q) for q in queries], 12).seconds


PREFILL_CASES = ("2k", "8k")
_WAYS: dict[str, Callable[..., Iterator[float]]] = {"decode": decode, "prefill": prefill}


def _setting(dry: bool) -> tuple[Clock, Plan]:
    Run.prepare()
    if dry:
        # Interpreted programs have no limits, so one alternative takes seconds.
        return DryClock(), DRY
    return CudaClock(), FULL


def _compile(way: str, shape: Shape, tile: Tile, dry: bool) -> str:
    """Compile an alternative in this process, for the cache on disk; return why that failed, or nothing."""
    clock, plan = _setting(dry)
    _put(shape.dim, tile)
    began = time.monotonic()
    try:
        list(_WAYS[way](clock, plan, shape, tile, compile_only=True))
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())}"[:100]
    print(f"compiled {tile} in {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    return ""


def _text(tile: Tile) -> str:
    names = [name for name in tile.__slots__ if getattr(tile, name) is not None]
    return " ".join([f"{name}={getattr(tile, name)}" for name in names])


def sweep(way: str, dry: bool, processes: int) -> Iterator[dict[str, object]]:
    """Yield one record per alternative, after printing a table per head size."""
    clock, plan = _setting(dry)
    listed: dict[int, tuple[Tile, ...]] = dict(DECODE) if way == "decode" else dict(PREFILL)
    columns_of = DECODE_CASES if way == "decode" else PREFILL_CASES
    todo = [(name, shape, tile) for name, shape in SHAPES.items() for tile in listed[shape.dim][: 1 if dry else None]]
    if dry:
        todo = [(name, Shape(2, 1, 16), replace(tile)) for name, _, tile in todo]
        wrong = [""] * len(todo)
    else:
        with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
            wrong = list(pool.map(partial(_compile_one, way, dry), todo))
    for name in SHAPES:
        lines: list[Sequence[str]] = [(f"{way}, {name}, us", *columns_of, "")]
        for (of, shape, tile), why in zip(todo, wrong, strict=True):
            if of != name:
                continue
            _put(shape.dim, tile)
            taken: list[float] = []
            if not why:
                try:
                    taken.extend(seconds * 1e6 for seconds in _WAYS[way](clock, plan, shape, tile))
                except Exception as error:
                    why = f"{type(error).__name__}: {' '.join(str(error).split())}"[:100]
            figures = [f"{one:.1f}" for one in taken] + ["-"] * (len(columns_of) - len(taken))
            lines.append((_text(tile), *figures, why))
            yield {"way": way, "heads": name, "tile": _text(tile), "us": taken, "why": why}
        print(columns(lines) + "\n", flush=True)


def _compile_one(way: str, dry: bool, one: tuple[str, Shape, Tile]) -> str:
    return _compile(way, one[1], one[2], dry)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="decode,prefill", help="decode, prefill")
    parser.add_argument("--out", type=Path, help="a file for the figures, JSON")
    parser.add_argument("--processes", type=int, default=max((os.cpu_count() or 2) - 2, 1))
    parser.add_argument("--dry", action="store_true", help="tiny shapes on a CPU, no figures")
    options = parser.parse_args()
    if options.dry:
        os.environ["TRITON_INTERPRET"] = "1"
    told: list[dict[str, object]] = []
    for way in options.only.split(","):
        for one in sweep(way, options.dry, options.processes):
            told.append(one)
            if options.out:
                options.out.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
