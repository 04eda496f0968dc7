"""The text that each mutation replaces is where it is expected. mutate.py shows that the tests then fail."""

from __future__ import annotations

import pytest

from tests.conformance.mutations import MUTATIONS
from tests.conformance.table import ROOT


@pytest.mark.parametrize("file", sorted({mutation.file for mutation in MUTATIONS}))
def test_a_rule_to_switch_off_stands_once_in_its_file(file: str) -> None:
    text = (ROOT / file).read_text()
    places = {(mutation.row, mutation.old): text.count(mutation.old) for mutation in MUTATIONS if mutation.file == file}
    assert {rule: count for rule, count in places.items() if count != 1} == {}


def test_a_mutation_changes_something() -> None:
    assert [mutation for mutation in MUTATIONS if mutation.old == mutation.new] == []
