"""Check the attention kernels against float64: all fork depths, odd lengths, replays with changed lists, equal bits.

Inputs are random and have the device's number type; outputs are filled with NaN beforehand. An error is the largest
relative error of a row, |out - expected| / |expected|; a check of bits counts the rows that differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from bench.gpu import references
from bench.gpu.cases import Shape
from bench.gpu.layer import UNSHARED, Fork, Layer, Planned, Tables, attention_spec
from bench.gpu.run import Run
from bench.gpu.table import Result
from engine.batch import Chunk, Row
from engine.device.tiles import plan_tiles
from engine.kernels import launch
from engine.kernels.attn_items import Work
from engine.kernels.prefill_attn import prefill_attn
from engine.models.spec import AttentionSpec

_GROUPS = (1, 2, 3, 4, 7)
_KV_HEADS = 2


def tolerance(run: Run) -> float:
    """Return the tolerated error.

    Weights and results are rounded to the device's type: 2^-9 each in bfloat16, and a row's errors do not cancel.
    """
    return 1e-5 if run.clock.dtype == torch.float32 else 1e-2


@dataclass(frozen=True, slots=True)
class _Case:
    """Head size and group, and the layer's window, softcap and sinks if it has any."""

    dim: int
    group: int
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False

    @property
    def spec(self) -> AttentionSpec:
        """The layer's attention."""
        return attention_spec(Shape(_KV_HEADS * self.group, _KV_HEADS, self.dim), self.window, self.softcap)

    @property
    def name(self) -> str:
        """The fields in which it differs from other cases, as text."""
        extras = [f"window {self.window}" * bool(self.window), f"cap {self.softcap}" * bool(self.softcap)]
        extras.append("sinks" * self.sinks)
        return f"head {self.dim}, group {self.group}" + "".join([f", {extra}" for extra in extras if extra])


def _cases(run: Run, dim: int) -> list[_Case]:
    if run.clock.dry:
        return [_Case(dim, 3, window=9, softcap=5.0, sinks=True)]
    extra = [_Case(dim, 4, window=301), _Case(dim, 4, softcap=20.0), _Case(dim, 4, sinks=True)]
    extra.append(_Case(dim, 48))  # one row fills a tile, so that only one kind of tile exists
    return [_Case(dim, group) for group in _GROUPS] + extra


def _forest(run: Run) -> tuple[list[Fork | int], int]:
    """Return groups of forks, and enough blocks for them: depth 3, many rows, no sibling, one token."""
    if run.clock.dry:
        return [Fork(2, (Fork(1, (3, 2)), 1)), 6], 16
    deep = Fork(37, (Fork(19, (Fork(3, (1, 77, 130)), 255, 301)), 16, 517))
    many = Fork(65, tuple(range(1, 80, 2)))  # 40 rows: more than a wide tile of any group holds
    return [deep, many, 1003, 1, Fork(1, (3, 5))], 1024


def decode(run: Run, dim: int) -> None:
    """Check decode attention with heads of `dim` numbers."""
    dim = 16 if run.clock.dry else dim
    for case in _cases(run, dim):
        run.attempt([f"attention, {case.name}"], partial(_decode, run, case))
    run.attempt([f"attention replayed, head {dim}"], partial(_replay, run, dim))
    run.attempt([f"attention beside others, head {dim}"], partial(_beside, run, dim))
    run.attempt([f"attention shared or not, deterministic, head {dim}"], partial(_cut, run, dim))


def _layer(run: Run, spec: AttentionSpec, blocks: int) -> Layer:
    torch.manual_seed(7)
    return Layer(spec, blocks, run.plan.block, run.clock.dtype, run.clock.device)


def _rows(tables: Tables, forest: Sequence[Fork | int], *, cut: bool = False) -> list[Row]:
    return [row for fork in forest for row in tables.rows(fork, cut=cut)]


def _expected(layer: Layer, q: torch.Tensor, rows: Sequence[Row], sinks: torch.Tensor | None = None) -> torch.Tensor:
    return torch.cat(
        [
            references.attention(q[i : i + 1], layer.kv, layer.slots(row), [row.position], layer.spec, sinks)
            for i, row in enumerate(rows)
        ]
    )


def _decode(run: Run, case: _Case) -> Iterator[Result]:
    """Check attention that shares as the tree does, and attention without sharing; yield the larger error."""
    forest, blocks = _forest(run)
    layer = _layer(run, case.spec, blocks)
    rows = _rows(Tables(blocks, layer.size, shuffle=True), forest)
    q = layer.queries(len(rows))
    sinks = torch.randn(case.spec.heads, device=q.device).to(q.dtype) if case.sinks else None
    expected = _expected(layer, q, rows, sinks)
    errors = {}
    for name, gate in (("shared", 0), ("unshared", UNSHARED)):
        planned = layer.plan(rows, gate)
        planned.poison()
        errors[name] = references.error(layer.attend(q, planned, sinks), expected)
    worst = max(errors, key=lambda name: (errors[name] != errors[name], errors[name]))
    yield Result(f"attention, {case.name}", errors[worst], worst, goal=tolerance(run), detail=errors)


def _replay(run: Run, dim: int) -> Iterator[Result]:
    """Check that a recorded launch serves other lists: longer, shorter and empty, with other rows and queries."""
    group = 4
    forest, blocks = _forest(run)
    layer = _layer(run, attention_spec(Shape(_KV_HEADS * group, _KV_HEADS, dim)), blocks)
    lists = [forest, forest[:1], [*forest[1:], *forest[:1]]]
    steps = [_rows(Tables(blocks, layer.size, shuffle=True), one) for one in lists]
    plans = [layer.plan(rows, 0) for rows in steps]
    most = max(len(rows) for rows in steps)
    longest = Work(*[_room([getattr(plan.work, name) for plan in plans]) for name in Work._fields])
    positions = _room([plan.positions for plan in plans])
    fixed = layer.room(longest, positions, most)
    q = layer.queries(most)
    _write(fixed, plans[0])
    replay = run.clock.record(lambda: layer.attend(q, fixed))
    errors = []
    for rows, plan in zip(steps[::-1], plans[::-1], strict=True):
        q.normal_()
        fixed.poison()
        _write(fixed, plan)
        replay()
        errors.append(references.error(fixed.out[: len(rows)], _expected(layer, q[: len(rows)], rows)))
        if not fixed.out[len(rows) :].isnan().all():
            raise RuntimeError("a row beyond the list was written")
    fixed.poison()
    fixed.work.counts.zero_()
    replay()
    if not fixed.out.isnan().all():
        raise RuntimeError("an empty list has written something")
    yield Result(f"attention replayed, head {dim}", max(errors), goal=tolerance(run), detail={"errors": errors})


def _room(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    longest = max(tensors, key=len)
    return torch.zeros_like(longest)


def _write(fixed: Planned, plan: Planned) -> None:
    for name in Work._fields:
        given = getattr(plan.work, name)
        getattr(fixed.work, name)[: len(given)] = given
    fixed.positions[: len(plan.positions)] = plan.positions


def _attend(layer: Layer, q: torch.Tensor, rows: Sequence[Row], gate: int) -> torch.Tensor:
    planned = layer.plan(rows, gate)
    planned.poison()
    return layer.attend(q, planned).clone()


def _beside(run: Run, dim: int) -> Iterator[Result]:
    """Check that a row that shares nothing has the same bits alone and in a batch, at any place in the batch."""
    forest, blocks = _forest(run)
    layer = _layer(run, attention_spec(Shape(_KV_HEADS * 4, _KV_HEADS, dim)), blocks)
    rows = _rows(Tables(blocks, layer.size, shuffle=True), forest)
    q = layer.queries(len(rows))
    together = _attend(layer, q, rows, UNSHARED)
    turned = _attend(layer, q.flip(0).contiguous(), rows[::-1], UNSHARED).flip(0)
    differ = int((together != turned).any(1).sum())
    chosen = range(0, len(rows), 2 if run.clock.dry else 5)
    alone = [not torch.equal(_attend(layer, q[i : i + 1], rows[i : i + 1], UNSHARED)[0], together[i]) for i in chosen]
    yield Result(f"attention beside others, head {dim}", differ + sum(alone), "rows whose bits differ", goal=0)


def _cut(run: Run, dim: int) -> Iterator[Result]:
    """Check deterministic mode: a row has the same bits with its siblings, without them, and without any sharing."""
    _, blocks = _forest(run)
    fork = Fork(2, (3, 2, 1)) if run.clock.dry else Fork(67, tuple(range(3, 300, 31)))
    layer = _layer(run, attention_spec(Shape(_KV_HEADS * 4, _KV_HEADS, dim)), blocks)
    rows = _rows(Tables(blocks, layer.size, shuffle=True), [fork], cut=True)
    q = layer.queries(len(rows))
    shared, apart = _attend(layer, q, rows, 0), _attend(layer, q, rows, UNSHARED)
    differ = int((shared != apart).any(1).sum())
    chosen = range(0, len(rows), 2 if run.clock.dry else 3)
    alone = [not torch.equal(_attend(layer, q[i : i + 1], rows[i : i + 1], 0)[0], shared[i]) for i in chosen]
    error = references.error(shared, _expected(layer, q, rows))
    if not error <= tolerance(run):
        raise RuntimeError(f"the error is {error:.3g}")
    yield Result(
        f"attention shared or not, deterministic, head {dim}", differ + sum(alone), "rows whose bits differ", goal=0
    )


def prefill(run: Run, dim: int) -> None:
    """Check prefill attention with heads of `dim` numbers."""
    dim = 16 if run.clock.dry else dim
    for case in _cases(run, dim):
        run.attempt([f"prefill, {case.name}"], partial(_prefill, run, case))


def _prefill(run: Run, case: _Case) -> Iterator[Result]:
    """Check several chunks in one launch: at the start, after earlier tokens, of one token; twice, for equal bits."""
    stretches = [(0, 7), (5, 4), (9, 1)] if run.clock.dry else [(0, 311), (333, 257), (1021, 1), (64, 130)]
    size, heads = run.plan.block, case.spec.heads
    blocks = sum([-(-(start + count) // size) for start, count in stretches])
    layer = _layer(run, case.spec, blocks)
    tables = Tables(blocks, size, shuffle=True)
    chunks = [Chunk(0, (0,) * count, start, tables.take(-(-(start + count) // size))) for start, count in stretches]
    device, tokens = run.clock.device, sum([count for _, count in stretches])
    q = layer.queries(tokens)
    sinks = torch.randn(heads, device=device).to(q.dtype) if case.sinks else None
    shape = launch.prefill(case.dim, q.element_size(), small=launch.is_small(q.device))
    tiles = plan_tiles(chunks, shape.queries(case.group), size)
    listed = torch.from_numpy(tiles.tiles).to(device)
    outs = []
    for spare in (0, 3):  # entries of the list that its count excludes
        out = torch.full((tokens, heads * case.dim), torch.nan, dtype=q.dtype, device=device)
        prefill_attn(
            q,
            layer.kv,
            torch.cat((listed, listed[:1].expand(spare, -1))),
            torch.from_numpy(np.array([len(listed)], dtype=np.int32)).to(device),
            torch.from_numpy(tiles.blocks).to(device),
            out,
            block_size=size,
            scale=case.spec.scale,
            window=case.window,
            softcap=case.softcap,
            sinks=sinks,
        )
        outs.append(out)
    expected, begin = [], 0
    for chunk, (start, count) in zip(chunks, stretches, strict=True):
        last = Row(0, 0, start + count - 1, chunk.blocks, None)
        own = q[begin : begin + count]
        positions = range(start, start + count)
        expected.append(references.attention(own, layer.kv, layer.slots(last), list(positions), case.spec, sinks))
        begin += count
    if not torch.equal(*outs):
        raise RuntimeError("a longer list has changed the bits")
    yield Result(f"prefill, {case.name}", references.error(outs[0], torch.cat(expected)), goal=tolerance(run))
