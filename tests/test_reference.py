"""The pages of docs/ that are made from the code are what the code says now."""

from __future__ import annotations

import re

import pytest

from docs.generate.failed import failed
from docs.generate.pages import DOCS, PAGES
from docs.generate.raised import raised
from nproxy.choices.events import FailureKind


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_fresh(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), "run: make docs"


def test_every_key_says_what_it_means() -> None:
    rows = re.findall(r"(?m)^\| (`.*) \|$", (DOCS / "reference" / "config.md").read_text(encoding="utf-8"))
    cells = [re.split(r"(?<!\\\\) \| ", row) for row in rows]
    assert [row[0] for row in cells if not row[-1].strip()] == []


def test_an_error_is_followed_through_the_function_that_makes_it() -> None:
    (found,) = {error.message for error in raised() if error.code == "model_not_found"}
    assert found == "The model '{model}' does not exist."


def test_what_one_condition_decides_goes_together() -> None:
    found = {error.code: error.message for error in raised() if str(error.code).endswith("response_not_found")}
    assert found == {
        "response_not_found": "Response with id '{id}' not found.",
        "previous_response_not_found": "Previous response with id '{id}' not found.",
    }


def test_each_way_in_which_an_upstream_fails_has_its_messages() -> None:
    """But those that are the upstream's own, and what no client is told."""
    found = failed()
    assert {*FailureKind} - found.keys() <= {FailureKind.IN_BAND}, "a call of Failure is written as none before it"
    assert "The upstream '{upstream}' could not be reached." in found[FailureKind.CONNECT]
    assert len(found[FailureKind.TIMEOUT]) == 5, "of a table all"
    assert {*found[FailureKind.STALE]} < {*found[FailureKind.RESET]}, "of a name all that it may be"
    assert not any("message" in text for texts in found.values() for text in texts)
