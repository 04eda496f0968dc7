"""Time the alternatives to engine/kernels/launch.py's tiles on a GPU: of attention, and of products of few rows.

    python bench/gpu/tune.py [--only decode,prefill,products] [--out FILE] [--dry]

One line per alternative and one column per case, in microseconds; the first line is the table's own entry. Decode
attention's wide tiles are timed beside the table's narrow ones, and the other way round. Processes compile the
alternatives concurrently beforehand; one that does not compile, or is wrong, says so. Products have tables of their
own: bench/gpu/tune_products.py.
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
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    if "--dry" in sys.argv:
        os.environ["TRITON_INTERPRET"] = "1"  # before the kernels are imported
        from bench.gpu.interpreted import known_types

        known_types()

import torch

from bench.gpu import references, tune_products
from bench.gpu.cases import DRY, FULL, Plan, Shape
from bench.gpu.clocks import Clock, CudaClock, DryClock
from bench.gpu.layer import UNSHARED, Layer, Prompt, Tables, attention_spec, forked
from bench.gpu.run import Run
from bench.gpu.table import columns, failure, fields_text
from engine.kernels import launch
from engine.kernels.launch import Attn, Merge, Prefill, Tile

SHAPES = {"32/8/128": Shape(32, 8, 128), "14/2/64": Shape(14, 2, 64)}
_TABLE = dict(launch._ATTN)
_WIDE = {
    128: (
        Tile(64, 64, 2, 4, 2),
        Tile(64, 64, 2, 4, 3, 168),  # a third program begins where another ends
        Tile(64, 64, 3, 4, 4),
        Tile(64, 32, 3, 4, 3, 168),
        Tile(64, 64, 2, 8, 2, 128),
        Tile(128, 64, 3, 8, 1),
        Tile(128, 32, 4, 8, 2, 128),
    ),
    64: (
        Tile(64, 64, 3, 4, 3, 168),
        Tile(64, 64, 3, 4, 4, 128),
        Tile(64, 64, 4, 4, 6, 168),
        Tile(64, 128, 3, 4, 2),
        Tile(128, 64, 4, 8, 1),
        Tile(128, 64, 4, 8, 2, 128),
    ),
}
_NARROW = {
    128: (
        Tile(16, 32, 4, 4, 16, 128),
        Tile(16, 32, 3, 4, 5, 96),
        Tile(16, 32, 3, 2, 6, 168),
        Tile(16, 16, 4, 1, 7),
        Tile(16, 16, 4, 2, 7, 128),
        Tile(16, 64, 2, 4, 4, 128),
        Tile(16, 64, 3, 4, 3, 168),
        Tile(16, 64, 3, 4, 12, 168),
        Tile(16, 64, 3, 8, 3, 80),
    ),
    64: (
        Tile(16, 64, 3, 4, 16, 96),
        Tile(16, 64, 3, 4, 5, 96),
        Tile(16, 64, 4, 4, 4, 128),
        Tile(16, 64, 3, 2, 6, 168),
        Tile(16, 64, 2, 2, 8, 128),
        Tile(16, 32, 4, 1, 8),
        Tile(16, 128, 3, 4, 3, 168),
    ),
}
_PREFILL = {
    128: (
        Prefill(128, 64, 8, 2),
        Prefill(128, 64, 8, 4),
        Prefill(128, 128, 8, 2),
        Prefill(128, 128, 8, 3),
        Prefill(64, 64, 4, 3),
        Prefill(128, 64, 4, 3),
        Prefill(256, 64, 8, 2),
    ),
    64: (
        Prefill(128, 64, 8, 4),
        Prefill(128, 128, 8, 3),
        Prefill(128, 64, 4, 3),
        Prefill(64, 64, 4, 3),
        Prefill(256, 64, 8, 3),
    ),
}


@dataclass(frozen=True, slots=True)
class Decode:
    """What decode attention runs with: see launch.OVERLAP and launch.SHORTEST."""

    attn: Attn
    merge: Merge = launch.MERGE
    overlap: int = launch.OVERLAP
    shortest: int = launch.SHORTEST
    many: bool = True
    """Whether steps with the rows for it take launch._MANY_LANES instead of the wide tile."""


Entry = Decode | Prefill
_MANY = dict(launch._MANY_LANES)
MERGES = (Merge(32, 4), Merge(32, 2), Merge(32, 1), Merge(16, 2), Merge(8, 2), Merge(8, 1))


def _listed(way: str, dim: int) -> tuple[Entry, ...]:
    """Return the alternatives; of decode attention, the table's entry with another wide or another narrow tile."""
    if way == "prefill":
        return (launch.prefill(dim, 2), *_PREFILL[dim])
    attn = _TABLE[dim, 2]
    table = Decode(attn)
    if way == "wide":
        tiles = [attn, *[replace(attn, wide=tile) for tile in _WIDE[dim]]]
        found = [table, *[Decode(tile, many=False) for tile in tiles]]
        found += [replace(table, shortest=shortest) for shortest in (64, 256)]
        return (*found, *[replace(table, overlap=overlap) for overlap in (0, 1)])
    if way == "narrow":
        tiles = [attn, *[replace(attn, narrow=tile) for tile in _NARROW[dim]]]
        found = [Decode(tile) for tile in tiles]
        return (*found, *[replace(table, overlap=overlap) for overlap in (0, 1)])
    merges = MERGES if dim == 128 else MERGES[2:4]
    return (table, *[replace(table, merge=merge) for merge in merges])


def _put(dim: int, entry: Entry) -> None:
    """Make the launch table give this entry to heads of `dim` numbers of 2 bytes; prefill's is an argument."""
    if isinstance(entry, Prefill):
        return
    for itemsize in (2, 4):  # 4: the dry run's float32
        launch._ATTN[dim, itemsize] = entry.attn
    launch.MERGE, launch.OVERLAP, launch.SHORTEST = entry.merge, entry.overlap, entry.shortest
    launch._MANY_LANES.clear()
    launch._MANY_LANES.update(_MANY if entry.many else {})


def _cases(way: str, plan: Plan) -> dict[str, tuple[int, int, int]]:
    """Return the cases by name, as rows, prefix and gate: of wide tiles forks, of narrow ones lonely rows as well."""
    lengths = plan.lengths
    widths = (lengths.narrow, lengths.wide, lengths.widest)
    forks = [(n, lengths.short, 0) for n in widths] + [(lengths.wide, lengths.middle, 0)]
    names = ["2k n=8", "2k n=32", "2k n=128", "8k n=32"]
    if way == "wide":
        forks += [(lengths.wide, lengths.long, 0), (lengths.widest, lengths.long, 0)]
        return dict(zip([*names, "32k n=32", "32k n=128"], forks, strict=True))
    apart = [(1, lengths.short), (1, lengths.middle), (lengths.wide, lengths.short), (lengths.batch, lengths.middle)]
    names += ["2k alone", "8k alone", "2k x32", "8k x64"]
    return dict(zip(names, forks + [(*one, UNSHARED) for one in apart], strict=True))


def decode(
    way: str, clock: Clock, plan: Plan, shape: Shape, entry: Entry, *, compile_only: bool = False
) -> Iterator[float]:
    """Yield the seconds of a layer's decode attention in each case; RuntimeError if a result is wrong."""
    lengths = plan.lengths
    spec = attention_spec(shape)
    checked: set[int] = set()
    cases = list(_cases(way, plan).values())
    if compile_only:  # the first has all launches, a single row those of its own
        cases = [cases[0], *[one for one in cases if one[0] == 1][:1]]
    for n, prefix, gate in cases:
        if gate:
            fork, blocks = None, n * -(-prefix // plan.block)
        else:
            fork, blocks = forked(plan.block, n, prefix, lengths.own)
        layer = Layer(spec, blocks, plan.block, clock.dtype, clock.device)
        tables = Tables(blocks, plan.block)
        rows = tables.rows(fork) if fork else [row for _ in range(n) for row in tables.rows(prefix)]
        planned = layer.plan(rows, gate)
        queries = [layer.queries(len(rows)) for _ in range(lengths.sets)]
        layer.attend(queries[0], planned)
        if compile_only:
            clock.wait()
            continue
        if gate not in checked:
            planned.poison()
            out = layer.attend(queries[0], planned)
            at = len(rows) - 1
            want = references.attention(
                queries[0][at:], layer.kv, layer.slots(rows[at]), [rows[at].position], layer.spec
            )
            references.require(out[at:], want)
            checked.add(gate)
        yield clock.time([partial(layer.attend, q, planned) for q in queries], 12).seconds
        replay = clock.record(partial(layer.attend, queries[0], planned))
        out = layer.attend(queries[0], planned).clone()
        for _ in range(3):  # launches that overlap would sometimes read what is not there yet
            planned.poison()
            replay()
            if not torch.equal(planned.out, out):
                raise RuntimeError("a replay gave other bits")


def prefill(clock: Clock, plan: Plan, shape: Shape, tile: Entry, *, compile_only: bool = False) -> Iterator[float]:
    """Yield the seconds of a layer's prefill attention in each case; RuntimeError if a result is wrong."""
    assert isinstance(tile, Prefill)
    lengths, spec = plan.lengths, attention_spec(shape)
    for length in (lengths.short, lengths.middle):
        layer = Layer(spec, -(-length // plan.block), plan.block, clock.dtype, clock.device)
        own = Prompt(layer, length, tile)
        queries = [layer.queries(length) for _ in range(lengths.sets)]
        out = torch.full((length, spec.heads * spec.head_dim), torch.nan, dtype=clock.dtype, device=clock.device)
        own.attend(queries[0], out)
        if compile_only:
            clock.wait()
            return
        at = length - 5
        slots, positions = layer.slots(own.row), list(range(at, length))
        references.require(out[at:], references.attention(queries[0][at:], layer.kv, slots, positions, spec))
        yield clock.time([partial(own.attend, q, out) for q in queries], 12).seconds


PREFILL_CASES = ("2k", "8k")
_WAYS: dict[str, Callable[..., Iterator[float]]] = {
    "wide": partial(decode, "wide"),
    "narrow": partial(decode, "narrow"),
    "merge": partial(decode, "merge"),
    "prefill": prefill,
}


def _setting(dry: bool) -> tuple[Clock, Plan]:
    Run.prepare()
    if dry:
        # Interpreted programs have no limits, so one alternative takes seconds.
        return DryClock(), DRY
    return CudaClock(), FULL


def _compile(way: str, dry: bool, todo: tuple[str, Shape, Entry]) -> str:
    """Compile an alternative in this process, for the cache on disk; return why that failed, or nothing."""
    _, shape, entry = todo
    clock, plan = _setting(dry)
    _put(shape.dim, entry)
    began = time.monotonic()
    try:
        list(_WAYS[way](clock, plan, shape, entry, compile_only=True))
    except Exception as error:
        return failure(error)
    print(f"compiled {_text(way, entry)} in {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    return ""


def _text(way: str, entry: Entry) -> str:
    if isinstance(entry, Prefill):
        return fields_text(entry)
    tile = {"wide": entry.attn.wide, "narrow": entry.attn.narrow}.get(way, entry.merge)
    return f"{fields_text(tile)} overlap={entry.overlap} shortest={entry.shortest} many={entry.many}"


def sweep(way: str, heads: Sequence[str], dry: bool, processes: int) -> Iterator[dict[str, object]]:
    """Yield one record per alternative, after printing a table per head size."""
    clock, plan = _setting(dry)
    columns_of = PREFILL_CASES if way == "prefill" else tuple(_cases(way, plan))
    todo = [
        (name, shape, entry)
        for name, shape in SHAPES.items()
        if name in heads
        for entry in _listed(way, shape.dim)[: 1 if dry else None]
    ]
    if dry:
        todo = [(name, Shape(2, 1, 16), entry) for name, _, entry in todo]
        wrong = [""] * len(todo)
    else:
        with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
            wrong = list(pool.map(partial(_compile, way, dry), todo))
    for name in heads:
        lines: list[Sequence[str]] = [(f"{way}, {name}, us", *columns_of, "")]
        for (of, shape, entry), why in zip(todo, wrong, strict=True):
            if of != name:
                continue
            _put(shape.dim, entry)
            taken: list[float] = []
            if not why:
                try:
                    taken.extend(seconds * 1e6 for seconds in _WAYS[way](clock, plan, shape, entry))
                except Exception as error:
                    why = failure(error)
            figures = [f"{one:.1f}" for one in taken] + ["-"] * (len(columns_of) - len(taken))
            lines.append((_text(way, entry), *figures, why))
            yield {"way": way, "heads": name, "tile": _text(way, entry), "us": taken, "why": why}
        print(columns(lines) + "\n", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    help_ = "wide, narrow, merge (decode: these three), prefill, products"
    parser.add_argument("--only", default="decode,prefill,products", help=help_)
    parser.add_argument("--heads", default=",".join(SHAPES), help=", ".join(SHAPES))
    parser.add_argument("--out", type=Path, help="a file for the figures, JSON")
    parser.add_argument("--processes", type=int, default=max((os.cpu_count() or 2) - 2, 1))
    parser.add_argument("--dry", action="store_true", help="tiny shapes on a CPU, no figures")
    options = parser.parse_args()
    told: list[dict[str, object]] = []
    for way in options.only.replace("decode", "wide,narrow,merge").split(","):
        sweeping = tune_products.sweep if way == "products" else partial(sweep, way, options.heads.split(","))
        for one in sweeping(options.dry, options.processes):
            told.append(one)
            if options.out:
                options.out.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
