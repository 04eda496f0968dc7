"""The paged KV cache: every layer's keys and values, in blocks that block tables refer to."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence

import torch

from engine.models.model import CPU
from engine.models.spec import AttentionSpec


class KvCache:
    """Keys and values of all layers.

    `pools`: one tensor [layers, 2K, blocks * block_size, D] for all layers of one shape (K key heads of D numbers),
    keys' heads first; most models have one shape only.

    A block is block_size consecutive slots of every head. A head's slots are contiguous, so a span's keys, gathered
    block by block, are one matrix. The cache begins as zeros; on a CPU they take no memory until something is written.

    `store`, `gather`, `clear` and `copy_blocks` are for a CPU's backend; a device's kernels use `view` and `pools`.
    """

    def __init__(
        self,
        layers: Sequence[AttentionSpec],
        blocks: int,
        block_size: int,
        dtype: torch.dtype,
        device: torch.device = CPU,
    ) -> None:
        self.blocks = blocks
        self.block_size = block_size
        self.dtype = dtype
        self.device = device
        shapes = [(layer.kv_heads, layer.head_dim) for layer in layers]
        self.pools: list[torch.Tensor] = []
        self._by_block: list[torch.Tensor] = []  # the pools as [layers, 2K, blocks, block_size * D]
        views: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for kv_heads, head_dim in dict.fromkeys(shapes):
            mine = [index for index, shape in enumerate(shapes) if shape == (kv_heads, head_dim)]
            pool = _zeros((len(mine), 2 * kv_heads, blocks * block_size, head_dim), dtype, device)
            by_block = pool.view(len(mine), 2 * kv_heads, blocks, block_size * head_dim)
            self.pools.append(pool)
            self._by_block.append(by_block)
            views |= {layer: (pool[i], by_block[i].flatten(0, 1)) for i, layer in enumerate(mine)}
        self._layers = [views[layer] for layer in range(len(layers))]
        widest = max(kv_heads for kv_heads, _ in shapes)
        self._first_of_head = torch.arange(2 * widest).unsqueeze(1) * blocks  # [2K, 1], in rows of one block

    @property
    def tokens(self) -> int:
        """How many tokens fit in, of all sequences together; no sequence is longer."""
        return self.blocks * self.block_size

    def view(self, layer: int) -> torch.Tensor:
        """Return a layer's keys and values, [2K, slots, D]."""
        return self._layers[layer][0]

    def store(self, layer: int, kv: torch.Tensor, slots: torch.Tensor) -> None:
        """Write kv [T, 2K, D] to slots [T]."""
        self._layers[layer][0].index_copy_(1, slots, kv.transpose(0, 1))

    def places(self, blocks: Sequence[int], kv_heads: int) -> torch.Tensor:
        """Return what `gather` takes for these N blocks: the index of each block of each head, [2K * N]."""
        return (self._first_of_head[: 2 * kv_heads] + torch.tensor(blocks)).flatten()

    def gather(self, layer: int, places: torch.Tensor) -> torch.Tensor:
        """Copy out N blocks in sequence: [2K, N * block_size, D]."""
        slots, by_block = self._layers[layer]
        # Selecting rows of one block and head is three times as fast as selecting along the blocks of all heads.
        return by_block.index_select(0, places).view(slots.shape[0], -1, slots.shape[2])

    def clear(self, blocks: Sequence[int]) -> None:
        """Write zeros to blocks of all layers.

        What `gather` copies out beyond a sequence's last token is masked, and a mask hides any number, but neither NaN
        nor infinity, which a sequence that had the block before may have left there.
        """
        where = torch.tensor(blocks)
        for by_block in self._by_block:
            by_block.index_fill_(2, where, 0)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy blocks (source, target) of all layers. Targets are distinct, and no source is a target."""
        sources, targets = torch.tensor(pairs).unbind(1)
        for by_block in self._by_block:
            by_block.index_copy_(2, targets, by_block.index_select(2, sources))


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    # Anonymous memory is zero and allocated page by page; torch.zeros would write, and so allocate, all of it at once.
    memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
