"""How much memory there is for keys and values."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch

from engine.batch import Batch, Chunk, Draw, Row, plan_stretches
from engine.config import EngineConfig
from engine.messages import Sampling

KV_FRACTION = 0.9
"""Of what a GPU has free once the model is loaded and the largest step has its room; the rest is for what varies."""


def ram() -> int:
    """Bytes of RAM this process may use: the machine's, or the cgroup's limit where that is lower."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return machine
    return machine if limit == "max" else min(machine, int(limit))


def left_beside(largest_step: Callable[[], object]) -> int:
    """Bytes of the current GPU that stay free while `largest_step` runs, which is run to see."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    largest_step()
    torch.cuda.synchronize()
    taken = torch.cuda.max_memory_allocated() - before
    torch.cuda.empty_cache()
    return free - taken


def largest_batch(config: EngineConfig, context: int) -> Batch:
    """A step that takes as much memory as any of ordinary work: all tokens that may run, all sequences drawing.

    It writes to blocks 0, 1, ...
    """
    size, count = config.block_size, config.max_sequences
    sampling = Sampling(top_p=0.9, logit_bias=((0, 1.0),))
    rows = [
        Row(number, 0, 0, (number,), Draw(number, 0, 1, sampling, logprobs=config.max_logprobs))
        for number in range(count)
    ]
    chunks: list[Chunk] = []
    left, block = config.max_batch_tokens - count, count
    while left > 0:
        tokens = min(left, context)
        blocks = tuple(range(block, block - (-tokens // size)))
        chunks.append(Chunk(count + len(chunks), (0,) * tokens, 0, blocks))
        left, block = left - tokens, blocks[-1] + 1
    return Batch(chunks=tuple(chunks), rows=tuple(rows), stretches=plan_stretches(rows, size))
