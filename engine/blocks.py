"""The block pool: which blocks of the KV cache are held, by how many tables, and which content is known. No tensors.

A block is in one of three states: used (some block table holds it), cached (no table holds it, but its content is known
by a key and may be used again) or free. A full block is published under its key (prefix.py) once it is computed. A
sequence that needs the same tokens after the same past finds it there, used or cached. When no blocks are free, cached
blocks are given out again, least recently used first.

Invariant for all code that builds block tables: two tables that hold the same block hold the same blocks before it too,
because a block's key depends on the whole past. So the blocks of a chain of keys are known up to some point, and none
behind it: a table that holds a block also holds the blocks before it, and these are released and reused after it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from engine.errors import OutOfBlocks

BlockTable = tuple[int, ...]


class BlockPool:
    """Reference counts of `size` blocks of `block_size` tokens, and the keys of those that are published.

    keep: whether a published block stays known when its last holder releases it. peak: most blocks used at once so far.
    shared: blocks with more than one holder now. copies: copies made so far; those not yet given to the runner are
    fetched by `drain_copies`.
    """

    def __init__(self, size: int, block_size: int, *, keep: bool = False) -> None:
        self.size = size
        self.block_size = block_size
        self.peak = 0
        self.shared = 0
        self.copies = 0
        self._keep = keep
        self._holders = [0] * size
        self._keys: list[bytes | None] = [None] * size
        self._known: dict[bytes, int] = {}
        self._free = list(range(size - 1, -1, -1))  # a stack; block 0 is taken first
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._pending: list[tuple[int, int]] = []

    @property
    def free(self) -> int:
        """The number of blocks that are neither held nor cached."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """The number of blocks that no table holds but that may be used again."""
        return len(self._cached)

    @property
    def available(self) -> int:
        """The number of blocks that can be taken now."""
        return len(self._free) + len(self._cached)

    @property
    def used(self) -> int:
        """The number of blocks that some table holds."""
        return self.size - self.available

    def holders(self, block: int) -> int:
        """Return how many tables hold the block."""
        return self._holders[block]

    def take(self, count: int = 1) -> BlockTable:
        """Take `count` blocks for one holder. Raises OutOfBlocks, and takes none then."""
        if count > self.available:
            raise OutOfBlocks(f"{count} blocks asked for, {self.available} available")
        taken = tuple([self._free.pop() if self._free else self._evict() for _ in range(count)])
        for block in taken:
            self._holders[block] = 1
        self.peak = max(self.peak, self.used)
        return taken

    def fork(self, table: Sequence[int], times: int = 1) -> BlockTable:
        """Let `times` more tables hold these blocks, used or cached; return the table, which serves all of them."""
        if times > 0:
            for block in table:
                before = self._holders[block]
                if before == 0:
                    del self._cached[block]
                if before < 2 <= before + times:
                    self.shared += 1
                self._holders[block] += times
            self.peak = max(self.peak, self.used)
        return tuple(table)

    def own(self, table: BlockTable, index: int) -> BlockTable:
        """Return the table with a block at `index` that its holder may write to: a copy if other tables hold it too.

        The last holder writes in place. Only for blocks that are not full. Raises OutOfBlocks.
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
        """Return the copies (source, target) to carry out before anything is written, and forget them.

        Targets differ from each other and from every source, so the order of the copies does not matter, as long as no
        block is released between the copies of one step.
        """
        pending = tuple(self._pending)
        self._pending.clear()
        return pending

    def publish(self, table: BlockTable, index: int, key: bytes) -> BlockTable:
        """Make a full, computed block known by its key, and return the table; to be called in the order of the table.

        If the key is already known, the table gets the block that has it and releases its own: otherwise the invariant
        above would not hold, and one copy is enough.
        """
        block = table[index]
        known = self._known.setdefault(key, block)
        if known == block:
            self._keys[block] = key
            return table
        self.fork((known,))
        self._let_go(block)
        return (*table[:index], known, *table[index + 1 :])

    def count_known(self, keys: Sequence[bytes], most: int) -> int:
        """Count the known blocks of a chain of keys, at most `most`."""
        return bisect_left(keys, True, hi=most, key=lambda key: key not in self._known)

    def count_held(self, keys: Sequence[bytes], known: int) -> int:
        """Count the blocks that tables hold, of the first `known` ones of a chain of keys, all known."""
        return bisect_left(keys, True, hi=known, key=lambda key: not self._holders[self._known[key]])

    def find(self, keys: Sequence[bytes], most: int) -> BlockTable:
        """Return the known blocks of a chain of keys, at most `most`. They are not held yet: fork them at once."""
        return tuple([self._known[key] for key in keys[: self.count_known(keys, most)]])

    def release(self, table: Iterable[int]) -> None:
        """Release one holder's blocks, last block first, so that a prompt's first blocks are evicted last."""
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
            if self._keep and self._keys[block] is not None:
                self._cached[block] = None
            else:
                self._forget(block)
                self._free.append(block)

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        self._forget(block)
        return block

    def _forget(self, block: int) -> None:
        if (key := self._keys[block]) is not None:
            del self._known[key]
            self._keys[block] = None

    def check_integrity(self, tables: Iterable[Iterable[int]]) -> None:
        """Compare the counts with the block tables that exist; raise RuntimeError with what does not agree."""
        expected = Counter(block for table in tables for block in table)
        actual = {block: count for block, count in enumerate(self._holders) if count}
        if actual != dict(expected):
            raise RuntimeError(f"holders counted {actual}, holders found {dict(expected)}")
        if sorted([*self._free, *self._cached]) != [block for block in range(self.size) if not self._holders[block]]:
            raise RuntimeError("the lists of free and cached blocks and the counts disagree")
        if self._known != {key: block for block, key in enumerate(self._keys) if key is not None}:
            raise RuntimeError("the keys of the blocks and the blocks of the keys disagree")
        if any(self._keys[block] is None for block in self._cached) or any(self._keys[block] for block in self._free):
            raise RuntimeError("a cached block has no key, or a free one has")
        if self.shared != sum(count > 1 for count in actual.values()):
            raise RuntimeError(f"shared blocks counted {self.shared}, found {expected}")
        if self.peak < self.used or self.used != len(actual):
            raise RuntimeError(f"used {self.used}, found {len(actual)}, peak {self.peak}")
