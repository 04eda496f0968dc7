"""The block pool: which blocks of the KV cache are held, and by how many. Counts only, no tensors.

A block is in one of three states: used (some block table holds it), cached (nobody holds it, but its
content is known by a hash and may serve a later request) or free. Nothing is hashed yet, so `cached` is
empty; `release` is the one place where a block's last holder leaves, and `take` the one where it is reused.

Invariant for everyone who builds block tables: two tables that hold the same block hold the same blocks
before it too, because a block's keys depend on the whole past.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from engine.errors import OutOfBlocks

BlockTable = tuple[int, ...]


class BlockPool:
    """Reference counts over `size` blocks of `block_size` tokens.

    peak: most blocks used at once so far. shared: blocks with more than one holder now. copies: copies
    made so far; the ones not yet handed to the runner are fetched by `drain_copies`.
    """

    def __init__(self, size: int, block_size: int) -> None:
        self.size = size
        self.block_size = block_size
        self.peak = 0
        self.shared = 0
        self.copies = 0
        self._holders = [0] * size
        self._free = list(range(size - 1, -1, -1))  # a stack: block 0 is taken first
        self._pending: list[tuple[int, int]] = []

    @property
    def free(self) -> int:
        """Blocks that can be taken now."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Blocks that nobody holds but that may serve a later request."""
        return 0

    @property
    def used(self) -> int:
        """Blocks that some table holds."""
        return self.size - len(self._free) - self.cached

    def holders(self, block: int) -> int:
        """How many tables hold the block."""
        return self._holders[block]

    def take(self, count: int = 1) -> BlockTable:
        """Take blocks for one holder; raises OutOfBlocks, and then takes none."""
        if count > len(self._free):
            raise OutOfBlocks(f"{count} blocks asked for, {len(self._free)} free")
        taken = tuple(self._free.pop() for _ in range(count))
        for block in taken:
            self._holders[block] = 1
        self.peak = max(self.peak, self.used)
        return taken

    def fork(self, table: Sequence[int], times: int = 1) -> BlockTable:
        """Let `times` more tables hold these blocks; the same table serves them all."""
        if times > 0:
            for block in table:
                if self._holders[block] == 1:
                    self.shared += 1
                self._holders[block] += times
        return tuple(table)

    def own(self, table: BlockTable, index: int) -> BlockTable:
        """The table with a block at `index` that its holder may write to: copied if others hold it too.

        The last holder writes in place. Raises OutOfBlocks.
        """
        block = table[index]
        if self._holders[block] == 1:
            return table
        (target,) = self.take()
        self._let_go(block)
        self._pending.append((block, target))
        self.copies += 1
        return (*table[:index], target, *table[index + 1 :])

    def drain_copies(self) -> tuple[tuple[int, int], ...]:
        """The copies (source, target) to carry out before anything is written; then they are forgotten.

        Targets differ from each other and from every source, so the order of the copies does not matter,
        as long as no block is released between the copies of one step.
        """
        pending = tuple(self._pending)
        self._pending.clear()
        return pending

    def release(self, table: Iterable[int]) -> None:
        """One holder lets go of a table's blocks, last block first, so that a prompt's first blocks go last."""
        for block in reversed(tuple(table)):
            self._let_go(block)

    def _let_go(self, block: int) -> None:
        holders = self._holders[block] - 1
        if holders < 0:
            raise RuntimeError(f"block {block} released by nobody's holder")
        self._holders[block] = holders
        if holders == 1:
            self.shared -= 1
        elif holders == 0:
            self._free.append(block)

    def check_integrity(self, tables: Iterable[Iterable[int]]) -> None:
        """Compare the counts with the block tables that exist; RuntimeError says what does not agree."""
        expected = Counter(block for table in tables for block in table)
        actual = {block: count for block, count in enumerate(self._holders) if count}
        if actual != dict(expected):
            raise RuntimeError(f"holders counted {actual}, holders found {dict(expected)}")
        if sorted(self._free) != [block for block in range(self.size) if not self._holders[block]]:
            raise RuntimeError("the free list and the counts disagree")
        if self.shared != sum(count > 1 for count in actual.values()):
            raise RuntimeError(f"shared blocks counted {self.shared}, found {expected}")
        if self.peak < self.used or self.used != len(actual):
            raise RuntimeError(f"used {self.used}, found {len(actual)}, peak {self.peak}")
