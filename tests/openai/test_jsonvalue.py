"""Exact JSON in, compact JSON out."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nproxy.openai import jsonvalue
from nproxy.openai.jsonvalue import (
    MAX_DEPTH,
    dumps,
    dumps_within,
    is_json,
    loads,
    nested_deeper,
    outside_few_strings,
    outside_strings,
)

PROPERTY = settings(derandomize=True, deadline=None, max_examples=300)


@pytest.mark.parametrize("number", [2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**100, -(10**30)])
def test_integers_of_any_size_stay_integers(number: int) -> None:
    value = loads(b'{"a":[%d],"b":"x"}' % number)
    assert value == {"a": [number], "b": "x"}
    assert type(value["a"][0]) is int
    assert dumps(value) == b'{"a":[%d],"b":"x"}' % number


LONG = "12345678901234567890"


@pytest.mark.parametrize("string", [LONG, f'"{LONG}', f'\\\\"{LONG}', '\\"', f"-{LONG}"])
@pytest.mark.parametrize("key", ["a", LONG])
def test_an_integer_is_long_wherever_it_stands_among_strings(key: str, string: str) -> None:
    value = {key: [string, int(LONG), {"b": string}, -int(LONG)]}
    assert loads(dumps(value)) == value


@pytest.mark.parametrize("key", ["a", LONG])
@pytest.mark.parametrize("value", [LONG, f'"{LONG}"', f"\\{LONG}", -0.00012345678901234567, 10**18 - 1])
def test_digits_of_strings_and_of_fractions_take_the_short_road(
    monkeypatch: pytest.MonkeyPatch, key: str, value: str | float
) -> None:
    monkeypatch.setattr(jsonvalue, "_FOREIGN", None)
    data = json.dumps({key: [value], "b": value}).encode()
    assert loads(data) == {key: [value], "b": value}


@pytest.mark.parametrize(
    "data", [b"nan", b"[+Infinity]", b"1e999", b"-1e999", b"[1,]", b"\xff", b'"\xff"', b"", b"{}{}", b"1" * 5000]
)
def test_what_is_not_json_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        loads(data)


def test_what_only_python_writes_is_read() -> None:
    data = b'[NaN,Infinity,-Infinity,"NaN",-0.5]'
    assert loads(data) == [None, None, -9999.0, "NaN", -0.5]
    assert not is_json(data)
    assert is_json(b'["NaN","-Infinity"]')
    assert is_json(dumps(loads(data)))


@pytest.mark.parametrize("depth", [1, 2, 64, MAX_DEPTH])
def test_what_nests_deeper_is_not_written(depth: int) -> None:
    deepest = b"[" * depth + b"]" * depth
    assert dumps_within(loads(deepest), depth) == deepest
    assert dumps_within(loads(deepest[1:-1] or b"1"), depth) == (deepest[1:-1] or b"1")
    with pytest.raises(orjson.JSONEncodeError):
        dumps_within([loads(deepest)], depth)


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 300, 1100, 100_000])
def test_what_is_loaded_can_be_written(depth: int) -> None:
    with pytest.raises(ValueError, match="deep"):
        loads(b"[" * depth + b"]" * depth)
    with pytest.raises(ValueError):
        loads(b"[" * depth)
    deepest = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    assert dumps(loads(deepest)) == deepest


def test_lone_surrogates_are_kept_as_escapes() -> None:
    value = loads(b'{"a":"\\ud83d","b":"\xc3\xa9\\n"}')
    assert value == {"a": "\ud83d", "b": "é\n"}
    assert dumps(value) == '{"a":"\\ud83d","b":"é\\n"}'.encode()


def test_floats_that_json_cannot_hold_become_null() -> None:
    assert dumps([float("nan"), float("-inf"), 1.5]) == b"[null,null,1.5]"
    assert dumps({"a": [float("nan"), 2**70, 1.5]}) == b'{"a":[null,%d,1.5]}' % 2**70


@pytest.mark.parametrize(("data", "depth"), [(b"1", 0), (b"[]", 1), (b'{"a":[1,{"b":2}]}', 3), (b'["[[[",{}]', 2)])
def test_nested_deeper_knows_the_depth(data: bytes, depth: int) -> None:
    assert not nested_deeper(data, depth)
    assert depth == 0 or nested_deeper(data, depth - 1)


HILL = b"[" * 100 + b"]" * 100


@pytest.mark.timeout(20)  # removing one level after the other would take minutes
@pytest.mark.parametrize(
    ("data", "depth"),
    [
        (b"[" * 3_000_000 + b"]" * 3_000_000, 3_000_000),
        (b"[[]," * 1_000_000 + b"1" + b"]" * 1_000_000, 1_000_001),
        (b"[" + b",".join([HILL] * 15_000) + b"]", 101),
        (b"[" + b",".join([HILL] * 7_000 + [b"[" * 100 + HILL + b"]" * 100] + [HILL] * 7_000) + b"]", 201),
    ],
    ids=["a run", "leaves", "hills", "a mountain"],
)
def test_nested_deeper_takes_time_in_proportion_to_the_length(data: bytes, depth: int) -> None:
    assert nested_deeper(data, MAX_DEPTH) == (depth > MAX_DEPTH)


tricky = st.text(st.sampled_from('[]{}"\\a'), max_size=6)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4)
    | tricky,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(tricky, inner, max_size=3),
    max_leaves=10,
)


@PROPERTY
@given(values, st.booleans())
def test_loads_gives_what_was_written(value: Any, ascii_only: bool) -> None:
    data = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "replace")
    assert repr(loads(data)) == repr(json.loads(data))  # repr: 1 is not 1.0, and -0.0 is not 0.0
    assert repr(loads(dumps(value))) == repr(value)


@PROPERTY
@given(values, st.integers(0, 6))
def test_nested_deeper_equals_walking(value: Any, limit: int) -> None:
    def depth(of: Any) -> int:
        inner = of.values() if isinstance(of, dict) else of if isinstance(of, list) else None
        return 0 if inner is None else 1 + max(map(depth, inner), default=0)

    assert nested_deeper(json.dumps(value).encode(), limit) == (depth(value) > limit)


@PROPERTY
@given(st.lists(st.sampled_from([b'"', b"[", b"a", b"{}", b'"x"']), max_size=12).map(b"".join), st.integers(0, 8))
def test_between_few_strings_is_what_is_between_any(document: bytes, most: int) -> None:
    few = document.count(b'"') < 2 * most
    assert outside_few_strings(document, most) == (outside_strings(document) if few else None)
