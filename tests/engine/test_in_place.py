"""What attention reads where it lies: which items these are, and that they give what the reference gives."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from engine.attention.in_place import lying
from engine.batch import Batch, KvSpan, Row
from engine.kv_spans import Item, plan_kv_spans
from tests.engine.attending import SPECIAL, Case, spec_of, special
from tests.engine.forest import BLOCK, DRAW, forest_of


def _rows(*positions: int) -> list[Row]:
    return [Row(i, 1, position, (), DRAW) for i, position in enumerate(positions)]


def _item(rows: tuple[int, ...], blocks: tuple[int, ...], lo: int, hi: int) -> Item:
    return Item(rows, blocks, lo, hi, 0)


OTHER = _item((1,), (99,), 0, 2)  # so that no item is the only one


def test_items_that_go_on_from_each_other_are_one() -> None:
    items = [_item((0,), (7, 8), 0, 8), _item((0,), (9,), 8, 11), OTHER]
    there, others = lying(_rows(10, 1), items, BLOCK, least=8)
    assert [(one.item.blocks, one.slots) for one in there] == [((7, 8, 9), slice(28, 39))]
    assert others == [OTHER]


@pytest.mark.parametrize(
    "second",
    [
        _item((0,), (10,), 8, 11),  # its block lies elsewhere
        _item((0, 1), (9,), 8, 11),  # read by others
        _item((0,), (9,), 12, 14),  # not what follows
    ],
)
def test_items_that_do_not_go_on_stay_two(second: Item) -> None:
    there, others = lying(_rows(13, 13), [_item((0,), (7, 8), 0, 8), second], BLOCK, least=8)
    assert [one.slots for one in there] == [slice(28, 36)]
    assert others == [second]


def test_what_is_scattered_or_short_is_left_as_it_was() -> None:
    scattered = [_item((0,), (7, 9), 0, 8), _item((0,), (10, 11), 8, 16)]
    short = [_item((1,), (20,), 0, 4), _item((1,), (21,), 4, 7)]
    assert lying(_rows(15, 6), [*scattered, *short], BLOCK, least=8) == ([], [*scattered, *short])


def test_the_only_item_may_be_short() -> None:
    there, others = lying(_rows(2), [_item((0,), (5,), 0, 3)], BLOCK, least=100)
    assert ([one.slots for one in there], others) == ([slice(20, 23)], [])


def test_a_window_begins_where_its_rows_do_and_all_rows_must_begin_there() -> None:
    item = _item((0,), (5, 6, 7), 0, 12)
    assert lying(_rows(11), [item], BLOCK, 1, window=5)[0][0].slots == slice(27, 32)
    both = _item((0, 1), (5, 6, 7), 0, 12)
    assert lying(_rows(11, 12), [both], BLOCK, 1, window=5) == ([], [both])
    assert lying(_rows(11, 12), [both], BLOCK, 1, window=50)[0][0].slots == slice(20, 32)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("settings", [{}, *SPECIAL], ids=str)
def test_read_in_place_or_not_equals_the_reference(seed: int, settings: dict[str, Any]) -> None:
    chance = random.Random(900 + seed)
    forest = forest_of(chance, groups=chance.randrange(1, 5), depth=chance.randrange(0, 3))
    spec, sinks = special(settings, 6, 2)
    least = chance.choice([1, 8, 20])
    case = Case(spec, forest.blocks, len(forest.rows), span=chance.choice([8, 16, 512]), in_place=least)
    kv_spans = plan_kv_spans(forest.rows, BLOCK, gate=chance.choice([0, 20]))
    out = case.run(Batch(rows=tuple(forest.rows), kv_spans=kv_spans), sinks=sinks)
    case.assert_alone(forest.rows, out, sinks)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_long_shared_prompt_in_every_dtype(dtype: torch.dtype) -> None:
    # 750 shared blocks, far beyond one span, and an own one for each row.
    shared = tuple(range(3, 753))
    rows = [Row(i, 1, 3000 + i % 4, (*shared, 760 + 2 * i), DRAW) for i in range(5)]
    case = Case(spec_of(9, 3), 780, 5, dtype, in_place=256)
    kv_spans = plan_kv_spans(rows, BLOCK)
    plan = case.attention.begin(Batch(rows=tuple(rows), kv_spans=kv_spans))
    assert [(one.width, one.slots) for one in plan.layers[0].in_place] == [(5, slice(12, 3012))]
    out = case.run(Batch(rows=tuple(rows), kv_spans=kv_spans))
    near = 1e-5 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(out.double(), case.whole(rows), rtol=near, atol=near)


@pytest.mark.parametrize("sinks", [None, torch.tensor([0.5, -1.0, 2.0, 0.0])], ids=["", "sinks"])
def test_a_lone_row_is_one_piece_and_nothing_is_joined(sinks: torch.Tensor | None) -> None:
    row = Row(0, 1, 20, (1, 2, 3, 4, 5, 6), DRAW)
    case = Case(spec_of(4, 2), 12, 1, in_place=256)
    batch = Batch(rows=(row,), kv_spans=(KvSpan((0,), 0, 21),))
    assert case.attention.begin(batch).layers[0].whole
    case.assert_alone([row], case.run(batch, sinks=sinks), sinks)


def test_nothing_lies_in_place_for_layers_with_a_softcap() -> None:
    case = Case(spec_of(4, 2, softcap=3.0), 12, 1, in_place=1)
    row = Row(0, 1, 20, (1, 2, 3, 4, 5, 6), DRAW)
    assert not case.attention.begin(Batch(rows=(row,), kv_spans=(KvSpan((0,), 0, 21),))).layers[0].in_place
