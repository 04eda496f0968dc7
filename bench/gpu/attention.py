"""Measures 1 to 5: the attention of one layer, compared with itself without sharing and with torch's attention.

Our time covers both launches (partial results, and their merge) over paged blocks, replayed from a CUDA graph as a
recorded step replays them. The L2 is flushed before each repetition, and the repetitions take several sets of queries
in turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import torch

from bench.gpu import peers
from bench.gpu.clocks import Timing
from bench.gpu.layer import UNSHARED, Layer, Prompt, Tables, attention_spec, forked
from bench.gpu.run import Run
from bench.gpu.table import Result
from bench.roofline import PEAK
from engine.batch import Row
from engine.kernels import launch


def measure(run: Run, parts: frozenset[str]) -> None:
    """Run the measures whose number is in `parts`."""
    lengths = run.plan.lengths
    if "1" in parts:
        run.attempt(["1.private", "1.unaware"], partial(_shared, run, "1", lengths.wide, lengths.middle, "private"))
    if "2" in parts:
        run.attempt(["2.wide"], partial(_shared, run, "2", lengths.wide, lengths.long, "wide"))
        run.attempt(["2.widest"], partial(_shared, run, "2", lengths.widest, lengths.long, "widest"))
    if "3" in parts:
        run.attempt(["3.narrow"], partial(_shared, run, "3", lengths.narrow, lengths.short, "narrow"))
        run.attempt(["3.wide"], partial(_shared, run, "3", lengths.wide, lengths.short, "wide"))
    if "4" in parts:
        run.attempt(["4.bandwidth", "4.sdpa", "4.flex"], partial(_unshared, run))
        run.attempt(["4.prefill"], partial(_prefill, run))
    if "5" in parts:
        run.attempt(["5.gate"], partial(_gate, run))


def _layer(run: Run, blocks: int) -> Layer:
    return Layer(attention_spec(run.plan.layer), blocks, run.plan.block, run.clock.dtype, run.clock.device)


def _time(run: Run, layer: Layer, rows: Sequence[Row], gate: int) -> Timing:
    planned = layer.plan(rows, gate)
    queries = [layer.queries(len(rows)) for _ in range(run.plan.lengths.sets)]
    return run.clock.time([partial(layer.attend, q, planned) for q in queries], run.plan.lengths.repeats)


def _told(timings: dict[str, Timing]) -> dict[str, object]:
    return {
        name: {"us": one.seconds * 1e6, "low": one.low * 1e6, "high": one.high * 1e6, "graph": one.graphed}
        for name, one in timings.items()
    }


def _note(ours: Timing, theirs: Timing) -> str:
    return f"{ours.seconds * 1e6:.0f} us against {theirs.seconds * 1e6:.0f}"


def _shared(run: Run, number: str, n: int, prefix: int, name: str) -> Iterator[Result]:
    """Time the same rows on shared blocks, with sharing and without it, and on private copies of all blocks."""
    own = run.plan.lengths.own
    fork, blocks = forked(run.plan.block, n, prefix, own)
    apart = n * -(-(prefix + own) // run.plan.block)
    timings = {}
    layer = _layer(run, blocks)
    rows = Tables(blocks, layer.size).rows(fork)
    timings["shared"] = _time(run, layer, rows, layer.gate)
    timings["unaware"] = _time(run, layer, rows, UNSHARED)
    del layer
    layer = _layer(run, apart)
    tables = Tables(apart, layer.size)
    copies = [row for _ in range(n) for row in tables.rows(prefix + own)]
    timings["private"] = _time(run, layer, copies, layer.gate)
    ours = timings["shared"]
    detail = _told(timings)
    yield Result(
        f"{number}.{name}", timings["private"].seconds / ours.seconds, _note(ours, timings["private"]), detail=detail
    )
    if number == "1":
        yield Result("1.unaware", timings["unaware"].seconds / ours.seconds, _note(ours, timings["unaware"]))


def _unshared(run: Run) -> Iterator[Result]:
    """Time rows that share nothing, and torch's kernels on the same keys and values, contiguous for each row."""
    batch, length = run.plan.lengths.batch, run.plan.lengths.middle
    each = -(-length // run.plan.block)
    layer = _layer(run, batch * each)
    tables = Tables(batch * each, layer.size)
    rows = [row for _ in range(batch) for row in tables.rows(length)]
    ours = _time(run, layer, rows, UNSHARED)
    spec, device = layer.spec, run.clock.device
    moved = batch * length * run.plan.layer.token_bytes
    yield Result(
        "4.bandwidth",
        100 * moved / ours.seconds / PEAK,
        f"{ours.seconds * 1e6:.0f} us, {moved / ours.seconds / 1e12:.2f} TB/s",
        detail=_told({"ours": ours}),
    )
    stretches = torch.stack([layer.kv.index_select(1, layer.slots(row)) for row in rows])  # [B, 2K, S, D]
    keys, values = (half.contiguous() for half in stretches.chunk(2, 1))
    queries = [
        torch.randn(batch, spec.heads, 1, spec.head_dim, dtype=keys.dtype, device=device)
        for _ in range(run.plan.lengths.sets)
    ]
    planned = layer.plan(rows, UNSHARED)
    mine = layer.attend(queries[0].flatten(1, 2), planned).view(batch, -1)
    taken = [peers.sdpa(q, keys, values, causal=False) for q in queries]
    repeats = run.plan.lengths.repeats
    timings = {name: run.clock.time([each[name] for each in taken], repeats) for name in taken[0]}
    best = min(timings, key=lambda name: timings[name].seconds)
    theirs = taken[0][best]()
    assert isinstance(theirs, torch.Tensor)
    off = float((mine.float() - theirs.view(batch, -1).float()).norm() / theirs.float().norm())
    if not off <= 0.02:
        raise RuntimeError(f"ours and {best} are {off:.3g} apart")
    against = timings[best]
    yield Result("4.sdpa", against.seconds / ours.seconds, f"{best}, {_note(ours, against)}", detail=_told(timings))
    calls = [peers.flex(q, keys, values, compiled=not run.clock.dry) for q in queries]
    compiled = run.clock.time(calls, repeats)
    yield Result("4.flex", compiled.seconds / ours.seconds, _note(ours, compiled), detail=_told({"flex": compiled}))


def _prefill(run: Run) -> Iterator[Result]:
    """Time one prompt in one chunk, and torch's causal kernels on the same keys and values, contiguous."""
    length, size, device = run.plan.lengths.middle, run.plan.block, run.clock.device
    layer = _layer(run, -(-length // size))
    spec = layer.spec
    own = Prompt(layer, length, launch.prefill(spec.head_dim, run.clock.dtype.itemsize, small=launch.is_small(device)))
    queries = [layer.queries(length) for _ in range(run.plan.lengths.sets)]
    out = torch.empty(length, spec.heads * spec.head_dim, dtype=run.clock.dtype, device=device)
    repeats = run.plan.lengths.repeats
    ours = run.clock.time([partial(own.attend, q, out) for q in queries], repeats)
    there = layer.kv.index_select(1, layer.slots(own.row))
    keys, values = (half.contiguous() for half in there.unsqueeze(0).chunk(2, 1))
    taken = [peers.sdpa(q.transpose(0, 1).unsqueeze(0).contiguous(), keys, values, causal=True) for q in queries]
    timings = {name: run.clock.time([each[name] for each in taken], repeats) for name in taken[0]}
    best = min(timings, key=lambda name: timings[name].seconds)
    done = 2.0 * spec.heads * spec.head_dim * length**2
    yield Result(
        "4.prefill",
        timings[best].seconds / ours.seconds,
        f"{best}, {_note(ours, timings[best])}, {done / ours.seconds / 1e12:.0f} TFLOP/s",
        detail=_told(timings | {"ours": ours}),
    )


def _gate(run: Run) -> Iterator[Result]:
    """Time each case with the engine's own gate and with sharing off, twice each, alternating, on the same rows.

    The better of the two times counts: if the gate lets nothing through, both do the same work and differ by noise.
    """
    own, ratios, detail = run.plan.lengths.own, {}, {}
    for n, prefix in run.plan.lengths.gate:
        fork, blocks = forked(run.plan.block, n, prefix, own)
        layer = _layer(run, blocks)
        rows = Tables(blocks, layer.size).rows(fork)
        gated, off = zip(
            *[[_time(run, layer, rows, gate) for gate in (layer.gate, UNSHARED)] for _ in range(2)], strict=True
        )
        name = f"n={n}, prefix {prefix}"
        ratios[name] = min([one.seconds for one in off]) / min([one.seconds for one in gated])
        detail[name] = _told({"gated": gated[0], "gated again": gated[1], "off": off[0], "off again": off[1]})
    worst = min(ratios, key=lambda name: ratios[name])
    yield Result("5.gate", ratios[worst], worst, detail=detail)
