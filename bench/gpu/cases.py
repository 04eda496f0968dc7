"""What is measured: shapes, lengths and goals, as data. It imports the standard library only.

Lengths are prime, so that nothing is aligned to a block or a tile. The `tiny` cases have the same form and run on a CPU
in seconds; their figures mean nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Shape:
    """The attention of one layer: `heads` query heads and `kv_heads` key heads of `dim` numbers of 2 bytes each."""

    heads: int
    kv_heads: int
    dim: int

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values in one layer."""
        return 2 * self.kv_heads * self.dim * 2


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a model of the Llama family, as its config.json names them."""

    name: str
    architecture: Literal["qwen3", "llama"]
    vocab: int
    hidden: int
    layers: int
    attention: Shape
    intermediate: int
    tied: bool

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that a decode step reads: all products and the head, without the embedding's one row."""
        heads, kv = self.attention.heads * self.attention.dim, self.attention.kv_heads * self.attention.dim
        layer = self.hidden * (2 * heads + 2 * kv) + 3 * self.hidden * self.intermediate
        return 2 * (self.layers * layer + self.vocab * self.hidden)

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values in all layers."""
        return self.layers * self.attention.token_bytes


QWEN3 = ModelShape("Qwen3-0.6B", "qwen3", 151936, 1024, 28, Shape(16, 8, 128), 3072, tied=True)
LLAMA = ModelShape("Llama-3.1-8B", "llama", 128256, 4096, 32, Shape(32, 8, 128), 14336, tied=False)
LAYER = LLAMA.attention


@dataclass(frozen=True, slots=True)
class Lengths:
    """All lengths, in tokens, and all widths and counts."""

    own: int = 127
    """Tokens that each row has behind the shared prefix in the attention cases."""
    short: int = 2039
    """A short prefix or prompt."""
    middle: int = 8191
    """A medium prefix or prompt."""
    long: int = 32749
    """A long prefix."""
    narrow: int = 8
    """A small n."""
    wide: int = 32
    """A large n."""
    widest: int = 128
    """The largest n."""
    batch: int = 64
    """Rows of the unshared case."""
    new: int = 256
    """New tokens per choice in the throughput cases."""
    peer_new: int = 128
    """New tokens per choice against transformers."""
    even: int = 8192
    """The part of measure 10's prompt that fills whole blocks."""
    beyond: int = 7
    """Tokens that measure 10's prompt has after `even`."""
    extra: int = 64
    """New tokens per choice in measure 10, and in measure 11's comparison of bits."""
    gate: tuple[tuple[int, int], ...] = tuple((n, p) for n in (1, 2, 4, 8, 32) for p in (61, 127, 509, 2039))
    """Pairs of rows and prefix for measure 5."""
    rounds: int = 3
    """Repetitions of whole requests that count."""
    warm: int = 1
    """Repetitions of whole requests before those; they do not count."""
    repeats: int = 20
    """Repetitions of single calls."""
    sets: int = 3
    """Sets of inputs of a single call, taken in turns."""
    samples: int = 8
    """Choices that measure 11 compares."""


REAL = Lengths()
TINY = Lengths(
    own=3,
    short=7,
    middle=9,
    long=11,
    narrow=2,
    wide=2,
    widest=3,
    batch=2,
    new=2,
    peer_new=2,
    even=8,
    beyond=3,
    extra=2,
    gate=((2, 7),),
    rounds=1,
    warm=0,
    repeats=2,
    sets=1,
    samples=1,
)
TINY_QWEN3 = ModelShape("tiny Qwen3", "qwen3", 61, 32, 1, Shape(2, 1, 16), 48, tied=True)
TINY_LLAMA = ModelShape("tiny Llama", "llama", 67, 32, 1, Shape(3, 1, 16), 64, tied=False)
TINY_LAYER = Shape(2, 1, 16)


@dataclass(frozen=True, slots=True)
class Plan:
    """The cases of one run."""

    lengths: Lengths
    small: ModelShape
    large: ModelShape
    layer: Shape
    block: int


FULL = Plan(REAL, QWEN3, LLAMA, LAYER, 16)
DRY = Plan(TINY, TINY_QWEN3, TINY_LLAMA, TINY_LAYER, 4)


@dataclass(frozen=True, slots=True)
class Measure:
    """One line of the table.

    goal: what the figure should reach; None if only the figure is asked for. sense: whether more or less is better.
    """

    key: str
    what: str
    unit: str
    goal: float | None
    sense: Literal[">=", "<="] = ">="


MEASURES: tuple[Measure, ...] = (
    Measure("hw.copy", "copy bandwidth, bytes read and written", "TB/s", None),
    Measure("hw.matmul", "bf16 product 8192 x 8192 x 8192", "TFLOP/s", None),
    Measure("1.private", "layer attention, prefix 8k, n=32, against private copies", "x", 8.0),
    Measure("1.unaware", "  against shared blocks read by an unaware kernel", "x", 6.0),
    Measure("2.wide", "  prefix 32k, n=32, against private copies", "x", 13.0),
    Measure("2.widest", "  prefix 32k, n=128, against private copies", "x", 14.0),
    Measure("3.narrow", "  prefix 2k, n=8, against private copies", "x", 1.3),
    Measure("3.wide", "  prefix 2k, n=32, against private copies", "x", 3.0),
    Measure("4.sdpa", "unshared kernel, batch 64, 8k, against the best of SDPA", "x", 1.0),
    Measure("4.flex", "  against FlexAttention", "x", 1.0),
    Measure("4.bandwidth", "  its KV bytes over the peak bandwidth", "%", 75.0),
    Measure("4.prefill", "prefill kernel, one prompt of 8k, against the best of SDPA", "x", None),
    Measure("5.gate", "gated against sharing switched off, the worst case", "x", 0.98),
    Measure("6.small", "decode step, batch 1, Qwen3-0.6B, bytes over the peak bandwidth", "%", 40.0),
    Measure("6.large", "  Llama-3.1-8B", "%", 75.0),
    Measure("7.wide", "Qwen3-0.6B, one request, prompt 2k, n=32", "tokens/s", 30_000),
    Measure("7.widest", "  n=128", "tokens/s", 60_000),
    Measure("8.cold", "n=32 against 32 requests, 8k, 256 new, no prefix cache", "x", 6.0),
    Measure("8.unaware", "  with prefix cache, attention unaware of sharing", "x", 4.0),
    Measure("8.cached", "  with prefix cache, attention that shares", "x", None),
    Measure("9.generate", "against transformers generate, n=32, 2k", "x", 8.0),
    Measure("9.batching", "  against its continuous batching", "x", 5.0),
    Measure("10.blocks", "peak blocks, n=128, 8k + 7 (goal: the formula)", "blocks", None, "<="),
    Measure("11.bits", "deterministic mode: choices equal to the single request, bit for bit", "%", 100.0),
    Measure("11.single", "  its cost in time at n=1", "%", None, "<="),
    Measure("11.narrow", "  at n=8", "%", None, "<="),
    Measure("11.wide", "  at n=32", "%", None, "<="),
    Measure("11.widest", "  at n=128", "%", 10.0, "<="),
)
BY_KEY = {measure.key: measure for measure in MEASURES}


def peak_blocks(prompt: int, n: int, new: int, block: int) -> int:
    """Return the most blocks that a request may ever hold: the prompt's whole blocks once, the rest n times.

    One more block exists while the prompt's last block is copied.
    """
    return prompt // block + n * -(-(prompt % block + new) // block) + 1
