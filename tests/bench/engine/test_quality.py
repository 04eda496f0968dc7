"""How far two forms of the weights agree, and how well one reads."""

import math

import pytest

from bench.engine.quality import PROMPTS, Agreement, Read, agreement, common, share, table, windows

ONE = Read((math.log(0.5), math.log(0.125)), (7, 8, 9, 9), ((1, 2, 3, 4), (5, 6, 7, 8)))
OTHER = Read((math.log(0.25), math.log(0.25)), (7, 8, 9, 1), ((1, 2, 9, 4), (5, 6, 7, 8)))


def test_perplexity_is_the_geometric_mean_of_what_was_to_choose_from() -> None:
    assert ONE.perplexity == pytest.approx(4.0)
    assert OTHER.perplexity == pytest.approx(4.0)


def test_agreement_counts_positions_and_what_comes_before_the_first_other() -> None:
    assert agreement(ONE, OTHER) == Agreement(likeliest=0.75, greedy=0.875, prefix=3.0)
    assert agreement(ONE, ONE) == Agreement(1.0, 1.0, 4.0)


def test_what_two_rows_have_in_common() -> None:
    assert common((1, 2, 3), (1, 2, 4)) == 2
    assert common((1, 2), (1, 2)) == 2
    assert common((1,), (2,)) == 0
    assert share((1, 2, 3, 4), (0, 2, 0, 4)) == 0.5


def test_rows_of_different_lengths_are_not_compared() -> None:
    with pytest.raises(ValueError, match="shorter"):
        share((1, 2), (1,))


def test_windows_leave_out_what_is_left_over() -> None:
    assert list(windows(range(7), 3)) == [(0, 1, 2), (3, 4, 5)]


def test_there_are_twenty_prompts() -> None:
    assert len(set(PROMPTS)) == 20


def test_the_table_has_a_row_for_each_form_and_each_pair() -> None:
    lines = table({"float32": ONE, "int8": OTHER}).splitlines()
    assert lines[2:4] == ["| float32 | 4.000 | 1.0000x |", "| int8 | 4.000 | 1.0000x |"]
    assert lines[-1] == "| int8 and float32 | 75.0% | 87.5% | 3.0 of 64 |"
