"""A runner without a model: tokens are a hash of what a model would have read, so that wrong KV shows.

It keeps a real (small) KV cache with one integer per token slot. A written slot holds a hash of its token, its
position, its adapter and the previous slot, which is read through the block table. A draw hashes all slots of its past,
since attention reads them all. So the tokens change if a block table is wrong, a copy is missing, a block is released
too early, a cached block has other content than assumed, or a position is out of step. Log probabilities and hidden
states are such hashes too.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import threading
from collections.abc import Mapping

from engine.batch import Batch, Chunk, Draw, StepOutput
from engine.config import EngineConfig
from engine.errors import ModelError
from engine.messages import Logprobs, Ready


def mixed(*values: int | str) -> int:
    """A 32-bit hash of some values, the same in every process."""
    return int.from_bytes(hashlib.blake2b(repr(values).encode(), digest_size=4).digest(), "big")


def ready(*, blocks: int = 256, block_size: int = 4, max_model_len: int = 512, vocab_size: int = 1000) -> Ready:
    """What such a runner reports about itself."""
    return Ready(vocab_size, max_model_len, blocks, block_size, 100, frozenset({0}), "none", "none")


class HashRunner:
    """Deterministic: a drawn token depends only on the sequence's tokens, its seed and the position.

    batches: all batches that were run, in order. failing: every step raises, like a model out of memory. pause: steps
    wait until it is set, except the first `free_steps`; at most `longest_pause` seconds each.
    """

    overlaps = False

    def __init__(self, about: Ready) -> None:
        self.ready = about
        self.batches: list[Batch] = []
        self.failing = False
        self.pause: threading.Event | None = None
        self.free_steps = 0
        self.longest_pause: float | None = None
        self._masks: Mapping[int, bytes] = {}
        self._slots: list[int | None] = [None] * (about.blocks * about.block_size)

    def submit(self, batch: Batch) -> StepOutput:
        """Check the batch, run it, and draw."""
        self.batches.append(batch)
        self._masks = batch.masks
        if self.failing:
            raise MemoryError("no memory left on the device")
        if self.pause is not None and len(self.batches) > self.free_steps:
            self.pause.wait(self.longest_pause)
        size = self.ready.block_size
        sources, targets = {source for source, _ in batch.copies}, [target for _, target in batch.copies]
        assert len(set(targets)) == len(targets), "two copies into one block"
        assert not sources & set(targets), "a copy reads what another writes"
        for source, target in batch.copies:
            self._slots[target * size : target * size + size] = self._slots[source * size : source * size + size]
        touched: list[int] = []
        drawn: list[list[tuple[Draw, int]]] = []
        scores: dict[int, tuple[Logprobs, ...]] = {}
        pooled: dict[int, tuple[float, ...]] = {}
        for chunk in reversed(batch.chunks):  # chunks of one step may run in any order
            last = chunk.start + len(chunk.tokens)
            assert chunk.tokens, "a chunk of nothing"
            assert len(chunk.blocks) == -(-last // size)
            touched += [
                self._write(chunk.blocks, chunk.start + i, token, chunk.adapter) for i, token in enumerate(chunk.tokens)
            ]
            drawn.append([(draw, self._draw(draw, chunk.blocks, last)) for draw in chunk.draws])
            if chunk.next_tokens:
                scores[chunk.sequence] = self._scores(chunk)
            if chunk.pooling == "mean" or (chunk.pooling and chunk.last):
                first = chunk.start if chunk.pooling == "mean" else last - 1
                pooled[chunk.sequence] = hidden(self._past(chunk.blocks, last)[first:])
        tokens = [pair for pairs in reversed(drawn) for pair in pairs]
        for row in batch.rows:
            assert row.token is not None, "it does not overlap"
            touched.append(self._write(row.blocks, row.position, row.token, row.adapter))
        for row in batch.rows:
            if row.draw is not None:
                assert row.draw.sequence == row.sequence
                tokens.append((row.draw, self._draw(row.draw, row.blocks, row.position + 1)))
        assert len(set(touched)) == len(touched), "two writes to one slot"
        self._check_stretches(batch)
        return StepOutput(
            tuple([(draw.sequence, token) for draw, token in tokens]),
            {draw.sequence: score(token) for draw, token in tokens if draw.logprobs is not None},
            scores,
            pooled,
        )

    def _slot(self, blocks: tuple[int, ...], position: int) -> int:
        return blocks[position // self.ready.block_size] * self.ready.block_size + position % self.ready.block_size

    def _write(self, blocks: tuple[int, ...], position: int, token: int, adapter: str | None) -> int:
        before = 0
        if position:
            found = self._slots[self._slot(blocks, position - 1)]
            assert found is not None, f"position {position} reads a slot that was never written"
            before = found
        slot = self._slot(blocks, position)
        self._slots[slot] = written(before, position, token, adapter)
        return slot

    def _past(self, blocks: tuple[int, ...], position: int) -> list[int]:
        return [self._slots[self._slot(blocks, before)] or 0 for before in range(position)]

    def _draw(self, draw: Draw, blocks: tuple[int, ...], position: int) -> int:
        assert draw.position == position
        assert draw.past is None or len(draw.past.prompt) + len(draw.past.output) == position
        banned = draw.banned
        if (mask := self._masks.get(draw.sequence)) is not None:
            banned |= {token for token in range(self.ready.vocab_size) if not mask[token // 8] >> token % 8 & 1}
        return token_after(self._past(blocks, position), draw.seed, banned, self.ready.vocab_size)

    def _scores(self, chunk: Chunk) -> tuple[Logprobs, ...]:
        past = self._past(chunk.blocks, chunk.start + len(chunk.tokens))
        return tuple([score(past[chunk.start + i], token) for i, token in enumerate(chunk.next_tokens)])

    def _check_stretches(self, batch: Batch) -> None:
        seen = [0] * len(batch.rows)
        for members, lo, hi in batch.kv_spans:
            for member in members:
                assert lo == seen[member]
                seen[member] = hi
        assert seen == [row.position + 1 for row in batch.rows]


def written(before: int, position: int, token: int, adapter: str | None = None) -> int:
    """The content of a slot. before: the content of the previous slot, 0 if there is none."""
    return mixed(before, position, token, *([] if adapter is None else [adapter]))


def token_after(past: list[int], seed: int, banned: frozenset[int] = frozenset(), vocab_size: int = 1000) -> int:
    """The token that is drawn after some slots: a hash, or the next token that is not banned."""
    token = mixed(*past, seed, len(past)) % vocab_size
    while token in banned:
        token = (token + 1) % vocab_size
    return token


def score(*values: int) -> Logprobs:
    """In place of log probabilities: a hash of a drawn token, or of a slot and the prompt's next token."""
    number = mixed(*values)
    return Logprobs(-number / 2**32, number % 7 + 1)


def hidden(slots: list[int]) -> tuple[float, ...]:
    """In place of a sum of hidden states: exact, whatever the order of the additions."""
    return float(sum(slots)), float(len(slots))


def slots_of(tokens: tuple[int, ...], adapter: str | None = None) -> list[int]:
    """The content of the slots of a sequence of tokens, computed without blocks or batches."""
    slots: list[int] = []
    for position, token in enumerate(tokens):
        slots.append(written(slots[-1] if slots else 0, position, token, adapter))
    return slots


def expected(
    prompt: tuple[int, ...],
    seed: int,
    count: int,
    vocab_size: int = 1000,
    *,
    adapter: str | None = None,
    stops: frozenset[int] = frozenset(),
    min_tokens: int = 0,
) -> list[int]:
    """The tokens that one choice must get, whatever else runs; computed without blocks or batches."""
    past, tokens = slots_of(prompt, adapter), list[int]()
    while len(tokens) < count:
        tokens.append(token_after(past, seed, stops if len(tokens) < min_tokens else frozenset(), vocab_size))
        past.append(written(past[-1], len(past), tokens[-1], adapter))
    return tokens


def load(config: EngineConfig) -> HashRunner:
    """A loader for the core process. `model` says how the runner behaves.

    "hash": correctly; "missing": loading fails; "broken": every step fails; "slow": a step takes longer than any test;
    "stuck": the third step does; "leisurely": a step takes 100 ms; "importing": prints its process id to standard
    error, imports torch, and then waits for ever.
    """
    if config.model == "missing":
        raise ModelError("there is no model of this name")
    if config.model == "importing":
        print(os.getpid(), file=sys.stderr, flush=True)
        importlib.import_module("torch")
        threading.Event().wait()
    runner = HashRunner(ready(block_size=config.block_size))
    runner.failing = config.model == "broken"
    if config.model in ("slow", "stuck", "leisurely"):
        runner.pause = threading.Event()
        runner.longest_pause = 0.1 if config.model == "leisurely" else None
        runner.free_steps = 2 if config.model == "stuck" else 0
    return runner
