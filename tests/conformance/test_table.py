"""docs/conformance.md is complete and up to date."""

from __future__ import annotations

import pytest

from tests.conformance.settings import EVERY
from tests.conformance.table import PAGE, ROOT, data, page, suite

SUITE = list(suite())
TESTS = [test for test in SUITE if not test.engine]
IN_EVERY_SETTING = "DEKP"


def test_every_row_has_a_test_and_every_test_a_row() -> None:
    named = {row for test in TESTS for row in test.rows}
    told = data()
    assert set(told.rows) - named == set(), "rows without a test"
    assert named - set(told.rows) - set(told.elsewhere) == set(), "tests of rows that rows.toml does not know"
    for row, (_, file) in told.elsewhere.items():
        assert f"{row}_" in (ROOT / file).read_text(), f"{file} shows no {row}"


def test_every_row_is_shown_with_the_engine_or_says_why_not() -> None:
    told = data()
    shown = {row for test in SUITE if test.engine for row in test.rows}
    assert shown | told.engine.keys() >= told.rows.keys(), "rows without a test and without a reason"
    assert shown & told.engine.keys() == set(), "rows with both"
    assert (shown | told.engine.keys()) - told.rows.keys() - told.elsewhere.keys() == set(), "no such rows"
    assert all(test.engine for test in SUITE if test.file.startswith("with_engine"))


def test_every_test_says_where_it_runs() -> None:
    assert [test.name for test in TESTS if test.applies is None] == []


@pytest.mark.parametrize("row", [row for row in data().rows if row[0] in IN_EVERY_SETTING])
def test_streams_usage_errors_and_bytes_hold_everywhere(row: str) -> None:
    """A row of these groups runs in all settings, or its tests state why not."""
    applied = [test.applies for test in TESTS if row in test.rows and test.applies is not None]
    names = {name for one in applied for name in one.names}
    assert names == {setting.name for setting in EVERY} or any(one.why for one in applied)


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text() == page(), "run: python -m tests.conformance.table"
