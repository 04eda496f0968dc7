"""What stays is walked by no collection."""

from __future__ import annotations

import gc

import pytest

from engine.gc_freeze import gc_frozen


@pytest.fixture(autouse=True)
def _as_before() -> None:
    gc.collect()


def test_what_is_made_is_walked_neither_meanwhile_nor_later() -> None:
    begun = sum(generation["collections"] for generation in gc.get_stats())
    try:
        with gc_frozen():
            made = [[] for _ in range(100_000)]  # type: list[list[int]]
            assert sum(generation["collections"] for generation in gc.get_stats()) == begun
        assert gc.get_freeze_count() > len(made)
        assert gc.isenabled()
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("collect", [True, False])
def test_garbage_is_freed_or_kept(collect: bool) -> None:
    try:
        with gc_frozen(collect=collect):
            for _ in range(1000):
                circle: list[object] = []
                circle.append(circle)
        gc.unfreeze()
        assert (gc.collect() < 500) is collect
    finally:
        gc.unfreeze()


def test_what_fails_leaves_the_collector_as_it_was() -> None:
    frozen = gc.get_freeze_count()
    with pytest.raises(ValueError, match="no model"), gc_frozen():
        raise ValueError("no model")
    assert gc.isenabled()
    assert gc.get_freeze_count() == frozen
