"""The block pool: counts, forks, copies on write, what is known by its key, and its own check."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.blocks import BlockPool, BlockTable
from engine.errors import OutOfBlocks


def test_taken_and_released() -> None:
    pool = BlockPool(4, 16)
    table = pool.take(3)
    assert (pool.used, pool.cached, pool.free, pool.peak) == (3, 0, 1, 3)
    pool.release(table)
    assert (pool.used, pool.cached, pool.free, pool.peak) == (0, 0, 4, 3)
    pool.check_integrity([])


def test_too_many_asked_for_takes_none() -> None:
    pool = BlockPool(2, 16)
    with pytest.raises(OutOfBlocks, match="3 blocks asked for, 2 available"):
        pool.take(3)
    pool.check_integrity([])
    assert pool.peak == 0


def test_a_fork_shares_every_block() -> None:
    pool = BlockPool(4, 16)
    table = pool.take(3)
    assert pool.fork(table, 31) == table
    assert (pool.used, pool.shared) == (3, 3)
    pool.check_integrity([table] * 32)


def test_a_fork_of_none_shares_nothing() -> None:
    pool = BlockPool(4, 16)
    table = pool.take(3)
    pool.fork(table, 0)
    assert pool.shared == 0


def test_the_first_to_write_copies_and_the_last_writes_in_place() -> None:
    pool = BlockPool(5, 16)
    table = pool.take(2)
    pool.fork(table, 2)
    first = pool.own(table, 1)
    second = pool.own(table, 1)
    third = pool.own(table, 1)
    assert first[0] == second[0] == third[0] == table[0]
    assert len({first[1], second[1], third[1]}) == 3
    assert third == table
    assert pool.drain_copies() == ((table[1], first[1]), (table[1], second[1]))
    assert pool.drain_copies() == ()
    assert pool.copies == 2
    pool.check_integrity([first, second, third])


def test_a_block_of_ones_own_is_not_copied() -> None:
    pool = BlockPool(2, 16)
    table = pool.take(1)
    assert pool.own(table, 0) is table
    assert pool.copies == 0


def test_what_nobody_holds_cannot_be_released() -> None:
    pool = BlockPool(2, 16)
    table = pool.take(1)
    pool.release(table)
    with pytest.raises(RuntimeError, match="released by nobody"):
        pool.release(table)


@pytest.mark.parametrize(
    ("tables", "complaint"),
    [([], "holders"), ([(0, 1), (1,)], "holders"), ([(0,)], "holders"), ([(0, 2)], "holders")],
)
def test_the_check_sees_tables_that_do_not_agree(tables: list[BlockTable], complaint: str) -> None:
    pool = BlockPool(4, 16)
    assert pool.take(2) == (0, 1)
    pool.check_integrity([(0, 1)])
    with pytest.raises(RuntimeError, match=complaint):
        pool.check_integrity(tables)


# What is known


def published(pool: BlockPool, *keys: bytes) -> BlockTable:
    """A table whose blocks are full and known by these keys."""
    table = pool.take(len(keys))
    for index, key in enumerate(keys):
        table = pool.publish(table, index, key)
    return table


def test_what_is_published_is_found_while_it_is_held_and_afterwards() -> None:
    pool = BlockPool(6, 16, keep=True)
    table = published(pool, b"a", b"ab", b"abc")
    assert pool.find([b"a", b"ab", b"x"], 3) == table[:2]
    assert pool.find([b"a", b"ab", b"abc"], 2) == table[:2]
    pool.release(table)
    assert (pool.used, pool.cached, pool.free, pool.available) == (0, 3, 3, 6)
    assert pool.fork(pool.find([b"a", b"ab"], 2), 2) == table[:2]
    assert (pool.used, pool.cached, pool.shared) == (2, 1, 2)
    pool.check_integrity([table[:2]] * 2)


def test_known_and_held_blocks_of_a_chain_are_counted() -> None:
    pool = BlockPool(6, 16, keep=True)
    chain = [b"a", b"ab", b"abc", b"x"]
    table = published(pool, *chain[:3])
    assert [pool.count_known(chain, most) for most in range(5)] == [0, 1, 2, 3, 3]
    assert pool.count_held(chain, 3) == 3
    assert pool.fork(table[:1]) == table[:1]
    pool.release(table)
    assert (pool.count_known(chain, 4), pool.count_held(chain, 3), pool.count_held(chain, 0)) == (3, 1, 0)


def test_a_pool_that_keeps_nothing_forgets_with_the_last_holder() -> None:
    pool = BlockPool(4, 16)
    table = published(pool, b"a", b"ab")
    assert pool.find([b"a", b"ab"], 2) == table
    pool.release(table)
    assert pool.find([b"a", b"ab"], 2) == ()
    assert (pool.cached, pool.free) == (0, 4)


def test_the_end_of_the_longest_unused_goes_first() -> None:
    pool = BlockPool(5, 16, keep=True)
    pool.release(published(pool, b"a", b"ab"))
    pool.release(published(pool, b"x", b"xy"))
    pool.release(pool.fork(pool.find([b"a"], 1)))  # used again
    pool.take(2)  # the free one, and one more
    assert (len(pool.find([b"a", b"ab"], 2)), len(pool.find([b"x", b"xy"], 2))) == (1, 2)
    pool.take()
    assert (len(pool.find([b"a"], 1)), len(pool.find([b"x", b"xy"], 2))) == (1, 1)
    pool.take(2)
    assert (pool.find([b"a"], 1), pool.find([b"x"], 1), pool.available) == ((), (), 0)
    with pytest.raises(OutOfBlocks):
        pool.take()


def test_what_is_known_already_is_held_once() -> None:
    pool = BlockPool(6, 16, keep=True)
    first = published(pool, b"a", b"ab")
    second = published(pool, b"a", b"ab", b"abc")
    assert second[:2] == first
    assert (pool.used, pool.shared, pool.free) == (3, 2, 3)
    pool.check_integrity([first, second])


def test_the_check_sees_keys_that_do_not_agree() -> None:
    pool = BlockPool(2, 16, keep=True)
    table = published(pool, b"a")
    pool._keys[table[0]] = b"b"
    with pytest.raises(RuntimeError, match="keys"):
        pool.check_integrity([table])


class PoolMachine(RuleBasedStateMachine):
    """Random holders of random tables: the counts agree after every operation, and nothing is left at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(12, 4)
        self.tables: list[BlockTable] = []

    @rule(count=st.integers(1, 5))
    def take(self, count: int) -> None:
        if count <= self.pool.free:
            self.tables.append(self.pool.take(count))
        else:
            with pytest.raises(OutOfBlocks):
                self.pool.take(count)

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), times=st.integers(0, 4))
    def fork(self, data: st.DataObject, times: int) -> None:
        table = data.draw(st.sampled_from(self.tables))
        self.tables += [self.pool.fork(table, times)] * times

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def own(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.tables) - 1))
        index = data.draw(st.integers(0, len(self.tables[at]) - 1))
        if self.pool.free:
            self.tables[at] = self.pool.own(self.tables[at], index)
            assert self.pool.holders(self.tables[at][index]) == 1

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.pool.release(self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1))))

    @invariant()
    def agrees(self) -> None:
        self.pool.check_integrity(self.tables)

    def teardown(self) -> None:
        for table in self.tables:
            self.pool.release(table)
        self.pool.check_integrity([])
        assert self.pool.free == 12


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=30)


class CacheMachine(RuleBasedStateMachine):
    """Sequences over two letters, a block for each: every block that is found holds what its key says."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(10, 1, keep=True)
        self.content: dict[int, bytes] = {}
        self.tables: list[tuple[bytes, BlockTable]] = []

    @rule(text=st.binary(min_size=1, max_size=6).map(lambda text: bytes(letter % 2 for letter in text)))
    def start(self, text: bytes) -> None:
        keys = [text[: end + 1] for end in range(len(text))]
        found = self.pool.find(keys, len(keys))
        assert all(self.content[block] == key for block, key in zip(found, keys, strict=False))
        held = self.pool.fork(found)
        if len(keys) - len(held) > self.pool.available:
            self.pool.release(held)
            return
        table = (*held, *self.pool.take(len(keys) - len(held)))
        self.content |= dict(zip(table, keys, strict=True))
        self.tables.append((text, table))

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.tables) - 1))
        text, table = self.tables[at]
        for index in range(data.draw(st.integers(0, len(table)))):
            table = self.pool.publish(table, index, text[: index + 1])
            assert self.content[table[index]] == text[: index + 1]
        self.tables[at] = text, table

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.pool.release(self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))[1])

    @invariant()
    def agrees(self) -> None:
        self.pool.check_integrity(table for _, table in self.tables)
        known = self.pool._known
        assert all(key[:-1] in known for key in known if len(key) > 1), "a chain is known behind a gap"

    def teardown(self) -> None:
        for _, table in self.tables:
            self.pool.release(table)
        self.pool.check_integrity([])
        assert self.pool.available == 10


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=60, stateful_step_count=30)
