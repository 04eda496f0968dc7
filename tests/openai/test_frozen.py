"""Values that the type checker keeps from being changed."""

from __future__ import annotations

import pytest

from nproxy.openai.frozen import frozen


@frozen
class Point:
    x: int
    y: int = 0


@frozen(kw_only=True)
class Named:
    name: str


def test_it_is_a_value() -> None:
    assert Point(1) == Point(1, 0) != Point(1, 2)
    assert {Point(1): "here"}[Point(1, 0)] == "here"
    assert Named(name="x").name == "x"


def test_the_type_checker_refuses_what_would_change_it() -> None:
    point = Point(1)
    point.x = 2  # type: ignore[misc]  # which mypy reports where there is nothing to ignore
    with pytest.raises(AttributeError):
        point.z = 2  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        Named("x")  # type: ignore[misc]
