"""How much memory of a GPU there is for keys and values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch

from engine.batch import Batch, Chunk, Draw, Row
from engine.config import EngineConfig
from engine.kv_spans import plan_kv_spans
from engine.messages import Sampling

KV_FRACTION = 0.9
"""The share for KV of what a GPU has free once the model is loaded and the largest step has its memory; the rest is for
what varies.
"""


class Room(NamedTuple):
    """Bytes of a GPU that a step takes, and that it leaves for keys and values."""

    taken: int
    left: int


def find_room(config: EngineConfig, largest_step: Callable[[EngineConfig], int]) -> tuple[EngineConfig, int]:
    """Return the settings with the tokens that a step may run as max_batch_tokens, and how many bytes that leaves for
    keys and values.

    If the settings leave it open: the largest of 8,192, half of that, ... whose step takes no more than it leaves.
    largest_step: runs such a step, and returns the bytes of its own keys and values.

    Raises torch.OutOfMemoryError if none fits.
    """
    *larger, least = _sizes(config)
    for settings in larger:
        with suppress(torch.OutOfMemoryError):
            room = room_beside(partial(largest_step, settings))
            if room.taken <= room.left:
                return settings, room.left
    return least, room_beside(partial(largest_step, least)).left


def _sizes(config: EngineConfig) -> Iterator[EngineConfig]:
    tokens = config.batch_tokens("cuda")
    yield replace(config, max_batch_tokens=tokens)
    while config.max_batch_tokens is None and tokens > config.least_batch_tokens:
        tokens = max(tokens // 2, config.least_batch_tokens)
        yield replace(config, max_batch_tokens=tokens)


def room_beside(largest_step: Callable[[], int]) -> Room:
    """Run a step, and return what it takes of the current GPU and what it leaves.

    largest_step: returns the bytes of its own keys and values.

    What counts is what torch's allocator takes from the device, including gaps between tensors, and, because free
    memory is read afterwards, what the step made others allocate: libraries, compiled kernels, other processes.
    """
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    own = largest_step()
    torch.cuda.synchronize()
    taken = torch.cuda.max_memory_reserved() - before - own
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    kept = torch.cuda.memory_reserved() - before  # of what the step took
    return Room(taken, free + kept - taken)


def largest_batch(config: EngineConfig, context: int, blocks: int | None = None) -> Batch:
    """Return a step that takes as much memory as any: all tokens that may run, with their own log probabilities, and
    all sequences drawing by all rules.

    blocks: of the cache, if there are too few for that. The step writes to blocks 0, 1, ...
    """
    size = config.block_size
    count = config.max_sequences if blocks is None else min(config.max_sequences, blocks)
    sampling = Sampling(top_p=0.9, logit_bias=((0, 1.0),))
    rows = [
        Row(number, 0, 0, (number,), Draw(number, 0, 1, sampling, logprobs=config.max_logprobs))
        for number in range(count)
    ]
    left, block = config.batch_tokens("cuda") - count, count
    if blocks is not None:
        left = min(left, (blocks - count) * size)
    chunks: list[Chunk] = []
    while left > 0:
        tokens = (0,) * min(left, context)
        table = tuple(range(block, block - (-len(tokens) // size)))
        chunk = Chunk(count + len(chunks), tokens, 0, table, next_tokens=tokens, prompt_logprobs=config.max_logprobs)
        chunks.append(chunk)
        left, block = left - len(tokens), table[-1] + 1
    return Batch(chunks=tuple(chunks), rows=tuple(rows), kv_spans=plan_kv_spans(rows, size))
