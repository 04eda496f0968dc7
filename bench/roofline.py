"""Predict the measures of bench/gpu/verify.py for a GPU: bytes and operations divided by given rates.

    python bench/roofline.py [--bandwidth 4.2] [--matmul 790] [--json]

Prints the predicted table with the floor of each case: the larger of its bytes over the memory bandwidth and its
operations over the matmul rate. A prediction adds the overheads that a floor leaves out; Machine lists them. The
defaults are an H200: its datasheet says 4.8 TB/s and 990 TFLOP/s, of which a copy and a product reach less.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from bench.gpu.cases import FULL, LLAMA, MEASURES, QWEN3, ModelShape, Plan, Shape, peak_blocks

PEAK = 4.8e12  # bytes per second by the datasheet: the fractions of measures 4 and 6 refer to it


@dataclass(frozen=True, slots=True)
class Machine:
    """A GPU, in bytes, operations and seconds."""

    bandwidth: float = 4.2e12
    """What a large copy reaches."""
    matmul: float = 7.9e14
    """What a large bf16 product reaches."""
    cache_bandwidth: float = 5.5e12
    """The bandwidth of the L2."""
    cache: float = 5.0e7
    """The size of the L2."""
    launch: float = 1.2e-6
    """One kernel after another in a graph."""
    item: float = 5e-6
    """Kernel and merge of a layer's attention, without the time for their bytes."""
    sampling: float = 60e-6
    """Sampling in a step, from logits to tokens, per 32 rows."""
    programs: int = 264
    """Programs of the attention kernel that run at once."""
    eager: float = 0.9e-3
    """One layer of a step in transformers' generate, which waits for the host."""
    batching: float = 0.4e-3
    """One layer of a step in transformers' continuous batching, which waits for the host too."""

    @property
    def attention(self) -> float:
        """Operations per second in attention's tiles, whose products wait for each other: half of `matmul`."""
        return self.matmul / 2


H200 = Machine()
_SPAN = 256  # keys of one work item; more if there are many keys
_LANES = 64  # rows times query heads in an item's tile
_KERNELS = 8  # of a layer, besides attention's two: two norms, four products, rotation and store, SiLU


@dataclass(frozen=True, slots=True)
class Estimate:
    """A case's prediction. seconds: predicted. bytes, operations: that must be moved and done."""

    seconds: float
    bytes: float
    operations: float

    def floor(self, machine: Machine) -> float:
        """Return the seconds below which no implementation gets much."""
        return max(self.bytes / machine.bandwidth, self.operations / machine.matmul)


def _partials(shape: Shape, rows: int, parts: int) -> float:
    """Return the bytes of `parts` partial results per row, written and read: float32 values and a log-sum-exp."""
    return 2.0 * rows * shape.heads * parts * (shape.dim + 1) * 4


def _shared_parts(machine: Machine, shape: Shape, rows: int, keys: int) -> int:
    """Return the number of items that a shared prefix is cut into: longer ones if the GPU stays busy (worklist.py)."""
    parts = -(-keys // _SPAN)
    items = parts * -(-rows * shape.heads // shape.kv_heads // _LANES)
    longer = max((items * shape.kv_heads // machine.programs).bit_length() - 1, 0)
    return -(-keys // (_SPAN << longer))


def private(machine: Machine, shape: Shape, rows: int, prefix: int, own: int) -> Estimate:
    """Estimate a layer's decode attention if every row reads its whole past itself, from memory."""
    keys = prefix + own
    moved = rows * keys * shape.token_bytes + _partials(shape, rows, -(-keys // _SPAN))
    done = 4.0 * rows * shape.heads * keys * shape.dim
    return Estimate(moved / machine.bandwidth + machine.item, moved, done)


def unaware(machine: Machine, shape: Shape, rows: int, prefix: int, own: int) -> Estimate:
    """Estimate the same over shared blocks: the prefix comes from memory once, then from the L2 if it fits there."""
    if prefix * shape.token_bytes > machine.cache:
        return private(machine, shape, rows, prefix, own)
    again = (rows - 1) * prefix * shape.token_bytes / machine.cache_bandwidth
    moved = (prefix + rows * own) * shape.token_bytes + _partials(shape, rows, -(-(prefix + own) // _SPAN))
    done = 4.0 * rows * shape.heads * (prefix + own) * shape.dim
    return Estimate(moved / machine.bandwidth + again + machine.item, moved, done)


def shared(machine: Machine, shape: Shape, rows: int, prefix: int, own: int) -> Estimate:
    """Estimate attention that reads the prefix once for all rows, as products of tiles, then each row's own tokens."""
    together = prefix * shape.token_bytes
    products = 4.0 * rows * shape.heads * prefix * shape.dim
    parts = _shared_parts(machine, shape, rows, prefix) + -(-own // _SPAN)
    apart = rows * own * shape.token_bytes + _partials(shape, rows, parts)
    seconds = max(together / machine.bandwidth, products / machine.attention) + apart / machine.bandwidth + machine.item
    return Estimate(seconds, together + apart, products + 4.0 * rows * shape.heads * own * shape.dim)


def step(machine: Machine, model: ModelShape, rows: int, layer: Estimate) -> Estimate:
    """Estimate a decode step of the whole model: weights, launches, sampling, and `layer` as each layer's attention."""
    products = model.weight_bytes * rows  # two operations for each number of two bytes
    weights = max(model.weight_bytes / machine.bandwidth, products / machine.matmul)
    overhead = model.layers * (_KERNELS * machine.launch + layer.seconds) + machine.sampling * max(rows / 32, 1)
    return Estimate(
        weights + overhead,
        model.weight_bytes + model.layers * layer.bytes,
        products + model.layers * layer.operations,
    )


def prefill(machine: Machine, model: ModelShape, tokens: int) -> Estimate:
    """Estimate the prefill of one prompt: products and causal attention."""
    products = float(model.weight_bytes - 2 * model.vocab * model.hidden) * tokens
    scores = 2.0 * model.layers * model.attention.heads * model.attention.dim * tokens**2
    moved = model.weight_bytes + tokens * model.token_bytes
    return Estimate(products / machine.matmul + scores / machine.attention, moved, products + scores)


def predict(machine: Machine = H200, plan: Plan = FULL) -> dict[str, float]:
    """Return the predicted value of every measure by its key, in the measure's unit."""
    lengths, layer, small = plan.lengths, plan.layer, plan.small
    own, n, widest = lengths.own, lengths.wide, lengths.widest

    def gain(kind: str, rows: int, prefix: int) -> float:
        against = private if kind == "private" else unaware
        alone = against(machine, layer, rows, prefix, own).seconds
        return alone / shared(machine, layer, rows, prefix, own).seconds

    def request(rows: int, prompt: int, new: int) -> float:
        """Return the seconds of one request for `rows` choices, from its arrival to its last token."""
        middle = shared(machine, small.attention, rows, prompt, new // 2)
        return prefill(machine, small, prompt).seconds + new * step(machine, small, rows, middle).seconds

    def apart(kind: str, prompts: int) -> float:
        """Return the seconds of n requests for one choice, of which `prompts` compute their prompt."""
        against = private if kind == "private" else unaware
        middle = against(machine, small.attention, n, lengths.middle, lengths.new // 2)
        decode = lengths.new * step(machine, small, n, middle).seconds
        return prompts * prefill(machine, small, lengths.middle).seconds + decode

    unshared = private(machine, layer, lengths.batch, lengths.middle, 0)
    kv = lengths.batch * lengths.middle * layer.token_bytes
    together = request(n, lengths.middle, lengths.new)
    against = request(n, lengths.short, lengths.peer_new)
    peer = {
        "generate": lengths.peer_new * small.layers * machine.eager,
        "batching": lengths.peer_new * small.layers * machine.batching,
    }
    return {
        "hw.copy": machine.bandwidth / 1e12,
        "hw.matmul": machine.matmul / 1e12,
        "1.private": gain("private", n, lengths.middle),
        "1.unaware": gain("unaware", n, lengths.middle),
        "2.wide": gain("private", n, lengths.long),
        "2.widest": gain("private", widest, lengths.long),
        "3.narrow": gain("private", lengths.narrow, lengths.short),
        "3.wide": gain("private", n, lengths.short),
        "4.sdpa": 1.0,
        "4.flex": 1.0,
        "4.bandwidth": 100 * kv / unshared.seconds / PEAK,
        "4.prefill": 0.6,
        "5.gate": 1.0,
        "6.small": _fraction(machine, plan.small, lengths.short),
        "6.large": _fraction(machine, plan.large, lengths.short),
        "7.wide": n * lengths.new / request(n, lengths.short, lengths.new),
        "7.widest": widest * lengths.new / request(widest, lengths.short, lengths.new),
        "8.cold": apart("private", n) / together,
        "8.unaware": apart("unaware", 1) / together,
        "8.cached": 1.0,
        "9.generate": peer["generate"] / against,
        "9.batching": peer["batching"] / against,
        "10.blocks": peak_blocks(lengths.even + lengths.beyond, widest, lengths.extra, plan.block),
        "11.bits": 100.0,
        "11.single": 0.0,
        "11.narrow": 0.0,
        "11.wide": 0.0,
        "11.widest": 0.0,
    }


def _fraction(machine: Machine, model: ModelShape, prompt: int) -> float:
    """Return what weights and KV need at the peak bandwidth, in percent of the predicted time of a step at batch 1."""
    moved = model.weight_bytes + prompt * model.token_bytes
    layer = private(machine, model.attention, 1, prompt, 0)
    return 100 * moved / PEAK / step(machine, model, 1, layer).seconds


def floors(machine: Machine) -> Iterator[tuple[str, Estimate]]:
    """Yield the cases: layers, then whole steps."""
    lengths, own = FULL.lengths, FULL.lengths.own
    for rows, prefix in (
        (lengths.narrow, lengths.short),
        (lengths.wide, lengths.short),
        (lengths.wide, lengths.middle),
        (lengths.wide, lengths.long),
        (lengths.widest, lengths.long),
    ):
        for backend in (private, unaware, shared):
            yield (
                f"layer, prefix {prefix}, n={rows}, {backend.__name__}",
                backend(machine, FULL.layer, rows, prefix, own),
            )
    yield (
        f"layer, batch {lengths.batch}, {lengths.middle}, unshared",
        private(machine, FULL.layer, lengths.batch, lengths.middle, 0),
    )
    for model in (QWEN3, LLAMA):
        yield f"prefill of {lengths.middle}, {model.name}", prefill(machine, model, lengths.middle)
        for rows in (1, lengths.wide, lengths.widest):
            layer = shared(machine, model.attention, rows, lengths.short, own)
            yield f"step, prompt {lengths.short}, n={rows}, {model.name}", step(machine, model, rows, layer)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bandwidth", type=float, default=H200.bandwidth / 1e12, help="TB/s that a copy reaches")
    parser.add_argument("--matmul", type=float, default=H200.matmul / 1e12, help="TFLOP/s that a bf16 product reaches")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    options = parser.parse_args()
    machine = Machine(bandwidth=options.bandwidth * 1e12, matmul=options.matmul * 1e12)
    predicted = predict(machine)
    if options.json:
        print(json.dumps({"machine": asdict(machine), "predicted": predicted}))
        return
    for field in fields(machine):
        print(f"{field.name:18} {getattr(machine, field.name):.3g}")
    print(f"\n{'case':48} {'MB':>8} {'GFLOP':>8} {'floor us':>9} {'predicted us':>12}")
    for name, estimate in floors(machine):
        print(
            f"{name:48} {estimate.bytes / 1e6:8.0f} {estimate.operations / 1e9:8.1f}"
            f" {estimate.floor(machine) * 1e6:9.0f} {estimate.seconds * 1e6:12.0f}"
        )
    print(f"\n{'measure':72} {'unit':9} {'predicted':>10} {'goal':>9}")
    for measure in MEASURES:
        goal = "" if measure.goal is None else f"{measure.sense} {measure.goal:g}"
        print(f"{measure.what:72} {measure.unit:9} {predicted[measure.key]:10.3g} {goal:>9}")


if __name__ == "__main__":
    main()
