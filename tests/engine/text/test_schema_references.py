"""What references inside a JSON schema refer to."""

from __future__ import annotations

import pytest

from engine.text.schema_references import part_at, place, referred
from nproxy.openai.jsonvalue import JSON

WHOLE: JSON = {
    "$defs": {"a/b": {"$ref": "#/$defs/c%20d"}, "c d": {"type": "null"}, "ring": {"$ref": "#/$defs/ring"}},
    "anyOf": [{"const": 1}, {"const": 2}],
}


@pytest.mark.parametrize(
    ("reference", "names"),
    [
        ("#", ()),
        ("#/$defs/a~1b", ("$defs", "a/b")),
        ("#/x~0y/%7B", ("x~y", "{")),
        ("#anchor", None),
        ("other.json#/a", None),
    ],
)
def test_the_place_of_a_reference(reference: str, names: tuple[str, ...] | None) -> None:
    assert place(reference) == names


def test_what_is_at_a_place() -> None:
    assert part_at(WHOLE, ()) is WHOLE
    assert part_at(WHOLE, ("anyOf", "1", "const")) == 2
    assert part_at(WHOLE, ("anyOf", "2")) is None
    assert part_at(WHOLE, ("anyOf", "1", "const", "x")) is None


def test_references_are_followed() -> None:
    assert referred({"$ref": "#/$defs/a~1b"}, WHOLE) == {"type": "null"}
    assert referred({"$ref": "#/$defs/ring"}, WHOLE) == {"$ref": "#/$defs/ring"}  # not forever
    assert referred({"$ref": "#/$defs/missing"}, WHOLE) is None
    assert referred({"$ref": "https://example.com/"}, WHOLE) == {"$ref": "https://example.com/"}
    assert referred(True, WHOLE) is True
