"""The order that tests are run in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.order import LONG, longest_first
from tests.real.processes import ROOT


def test_every_file_that_takes_long_is_there() -> None:
    assert [path for path in LONG if not (ROOT / path).is_file()] == []


def test_they_come_first_and_the_others_stay_in_their_order() -> None:
    items: list[Any] = [SimpleNamespace(path=ROOT / name) for name in ("a.py", "b.py", "c.py", "d.py")]
    assert [item.path.name for item in longest_first(items, ["d.py", "c.py"])] == ["d.py", "c.py", "a.py", "b.py"]


def test_this_session_is_in_that_order(request: pytest.FixtureRequest) -> None:
    assert request.session.items == longest_first(request.session.items)
