"""The page that lists the rows is complete and fresh."""

from __future__ import annotations

import pytest

from tests.conformance.settings import EVERY
from tests.conformance.table import PAGE, ROOT, data, page, suite

TESTS = list(suite())
IN_EVERY_SETTING = "DEKP"


def test_every_row_has_a_test_and_every_test_a_row() -> None:
    named = {row for test in TESTS for row in test.rows}
    told = data()
    assert set(told.rows) - named == set(), "rows without a test"
    assert named - set(told.rows) - set(told.elsewhere) == set(), "tests of rows that rows.toml does not know"
    for row, (_, file) in told.elsewhere.items():
        assert f"{row}_" in (ROOT / file).read_text(), f"{file} shows no {row}"


def test_every_test_says_where_it_runs() -> None:
    assert [test.name for test in TESTS if test.applies is None] == []


@pytest.mark.parametrize("row", [row for row in data().rows if row[0] in IN_EVERY_SETTING])
def test_streams_usage_errors_and_bytes_hold_everywhere(row: str) -> None:
    """A row of these groups runs in all settings, or its tests say why not."""
    applied = [test.applies for test in TESTS if row in test.rows and test.applies is not None]
    names = {name for one in applied for name in one.names}
    assert names == {setting.name for setting in EVERY} or any(one.why for one in applied)


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text() == page(), "run: python -m tests.conformance.table"
