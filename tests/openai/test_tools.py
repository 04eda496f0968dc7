"""Tool calls: whether there must be one; in deltas, mended for the SDKs that put them together."""

from __future__ import annotations

from typing import Any

import pytest

from nproxy.openai.jsonvalue import JSON
from nproxy.openai.tools import ToolCalls, must_call, with_texts


def mend(*deltas: list[Any]) -> list[list[Any]]:
    calls = ToolCalls()
    return [calls.mend(delta) for delta in deltas]


def part(index: int | None, **fields: Any) -> dict[str, Any]:
    return ({} if index is None else {"index": index}) | fields


@pytest.mark.parametrize(
    ("fields", "must"),
    [
        ({}, False),
        ({"tool_choice": None}, False),
        ({"tool_choice": "auto"}, False),
        ({"tool_choice": "none"}, False),
        ({"tool_choice": "required"}, True),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, True),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}}, False),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": []}}}, True),
        ({"function_call": "auto"}, False),
        ({"function_call": {"name": "f"}}, True),
    ],
)
def test_whether_an_answer_must_be_a_call(fields: dict[str, Any], must: bool) -> None:
    assert must_call(fields) is must


def test_G1_what_is_right_stays_as_it_is() -> None:
    deltas = [
        [part(0, id="a", type="function", function={"name": "f", "arguments": ""})],
        [part(0, function={"arguments": '{"x"'})],
        [part(0, function={"arguments": ":1}"})],
    ]
    assert mend(*deltas) == deltas


def test_G3_repeated_id_type_and_name_go_out_once() -> None:
    first = part(0, id="a", type="function", function={"name": "f", "arguments": "1"})
    again = part(0, id="a", type="function", function={"name": "f", "arguments": "2"})
    empty = part(0, id=None, type=None, function={"name": None, "arguments": "3"})
    blank = part(0, id="", function={"name": "", "arguments": "4"})
    assert mend([first], [again], [empty], [blank]) == [
        [first],
        [part(0, function={"arguments": "2"})],
        [part(0, function={"arguments": "3"})],
        [part(0, function={"arguments": "4"})],
    ]


def test_G1_an_empty_id_passes_where_the_call_begins() -> None:
    """The AI SDK refuses a call that begins without one, and a message's call must have one."""
    pieces = [[part(0, id="", function={"arguments": said})] for said in "123"]
    named = [part(0, id="a", function={"arguments": "4"})]
    assert mend(*pieces, named, pieces[0]) == [
        pieces[0],
        *([part(0, function={"arguments": said})] for said in "23"),
        named,
        [part(0, function={"arguments": "1"})],
    ]


def test_G3_a_custom_tool_is_named_once_too() -> None:
    first = part(0, id="a", type="custom", custom={"name": "run", "input": ""})
    again = part(0, custom={"name": "run", "input": "ls"})
    assert mend([first], [again]) == [[first], [part(0, custom={"input": "ls"})]]


def test_G3_and_so_is_the_function_of_a_legacy_call() -> None:
    calls = ToolCalls()
    deltas: list[dict[str, JSON]]
    deltas = [{"function_call": {"name": "f", "arguments": piece}, "role": "assistant"} for piece in ("1", "2")]
    assert [calls.mend_delta(delta) for delta in deltas] == [
        deltas[0],
        {"function_call": {"arguments": "2"}, "role": "assistant"},
    ]
    assert calls.mend_delta({"function_call": None, "tool_calls": None}) == {"function_call": None, "tool_calls": None}


OBJECT, TEXT = {"name": "f", "arguments": {"a": "é"}}, {"name": "f", "arguments": '{"a":"é"}'}


@pytest.mark.parametrize(
    ("said", "texts"),
    [
        ({"tool_calls": [part(0, function=TEXT), part(1, function=OBJECT)]}, None),
        ({"tool_calls": part(0, function=OBJECT)}, {"tool_calls": part(0, function=TEXT)}),
        ({"function_call": OBJECT, "content": "c"}, {"function_call": TEXT, "content": "c"}),
    ],
)
def test_G1_arguments_that_are_an_object_become_a_text(said: dict[str, Any], texts: dict[str, Any] | None) -> None:
    assert with_texts(said) == (texts or {"tool_calls": [part(0, function=TEXT), part(1, function=TEXT)]})


@pytest.mark.parametrize(
    "said",
    [
        {"tool_calls": [part(0, function=TEXT), part(1), 5, part(2, function={"arguments": None})]},
        {"tool_calls": None, "function_call": "f"},
        {"function_call": TEXT},
        {"tool_calls": "x"},
    ],
)
def test_G1_other_calls_stay_as_they_are(said: dict[str, Any]) -> None:
    same = with_texts(said)
    assert all(same[key] is value for key, value in said.items())


def test_G1_a_call_that_is_no_list_becomes_one() -> None:
    """So TGI streams the one call of a choice, with an empty id."""
    calls = ToolCalls()
    pieces: list[JSON] = [{"name": "f", "arguments": "{"}, {"name": None, "arguments": "}"}]
    mended = [calls.mend_delta({"tool_calls": {"index": 0, "id": "", "function": piece}}) for piece in pieces]
    assert mended == [
        {"tool_calls": [part(0, id="", function={"name": "f", "arguments": "{"})]},
        {"tool_calls": [part(0, function={"arguments": "}"})]},
    ]


def test_G3_a_name_in_pieces_stays_whole() -> None:
    pieces = [[part(0, id="a", function={"name": "get_"})], [part(0, function={"name": "weather"})]]
    assert mend(*pieces, [part(0, function={"name": "get_weather", "arguments": "x"})]) == [
        *pieces,
        [part(0, function={"arguments": "x"})],
    ]


def test_G5_parallel_calls_keep_their_indices() -> None:
    deltas = [
        [part(0, id="a", function={"name": "f"}), part(1, id="b", function={"name": "g"})],
        [part(1, function={"arguments": "1"}), part(0, function={"arguments": "0"})],
    ]
    assert mend(*deltas) == deltas


def test_R5_indices_that_carry_the_choice_count_from_zero() -> None:
    assert mend([part(3, id="a")], [part(3, function={"arguments": "1"})], [part(4, id="b")]) == [
        [part(0, id="a")],
        [part(0, function={"arguments": "1"})],
        [part(1, id="b")],
    ]


def test_G5_another_id_under_the_same_index_is_another_call() -> None:
    assert mend(
        [part(0, id="a", function={"name": "f", "arguments": "{}"})],
        [part(0, id="b", function={"name": "f", "arguments": "{}"})],
        [part(0, function={"arguments": "x"})],
    ) == [
        [part(0, id="a", function={"name": "f", "arguments": "{}"})],
        [part(1, id="b", function={"name": "f", "arguments": "{}"})],
        [part(1, function={"arguments": "x"})],
    ]


@pytest.mark.parametrize("ids", [["b", "c"], ["b", "b"]])
@pytest.mark.parametrize("name", [{}, {"name": None}, {"name": ""}])
def test_G9_another_id_without_a_name_is_the_same_call(ids: list[str], name: dict[str, Any]) -> None:
    first = part(0, id="a", type="function", function={"name": "f", "arguments": ""})
    more = [part(0, id=id, function={**name, "arguments": said}) for id, said in zip(ids, ("{", "}"), strict=True)]
    assert mend([first], *([piece] for piece in more)) == [
        [first],
        [part(0, function={"arguments": "{"})],
        [part(0, function={"arguments": "}"})],
    ]


def test_G1_entries_without_an_index() -> None:
    assert mend([part(None, id="a", x=1), part(None, id="b")], [part(None, function={"arguments": "1"})]) == [
        [part(0, id="a", x=1), part(1, id="b")],
        [part(1, function={"arguments": "1"})],
    ]


def test_G1_entries_without_an_index_go_on_with_the_highest() -> None:
    calls = [part(place, id=id, function={"name": "f", "arguments": ""}) for place, id in enumerate("ab")]
    assert mend(calls, [part(None, function={"arguments": "1"})]) == [calls, [part(1, function={"arguments": "1"})]]


def called(name: str, arguments: str) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


@pytest.mark.parametrize("names", [("f", "g"), ("f", "f")], ids="".join)
def test_G5_entries_of_one_list_without_index_and_id_are_several_calls(names: tuple[str, str]) -> None:
    entries = [part(None, function=called(name, "{}")) for name in names]
    assert mend(entries) == [[entry | {"index": place} for place, entry in enumerate(entries)]]


@pytest.mark.parametrize("id", [{}, {"id": ""}, {"id": None}], ids=str)
@pytest.mark.parametrize("names", [("f", "g"), ("f", "f")], ids="".join)
def test_G5_entries_of_one_list_under_one_index_without_id_are_several_calls(
    names: tuple[str, str], id: dict[str, Any]
) -> None:
    entries = [part(0, function=called(name, "{}"), **id) for name in names]
    passes = {} if id.get("id") is None else id
    assert mend(entries) == [[part(place, function=called(name, "{}"), **passes) for place, name in enumerate(names)]]


def test_G3_entries_of_one_list_under_one_index_go_on_without_a_name_or_before_arguments() -> None:
    first = part(0, id="a", function=called("f", ""))
    assert mend([first, part(0, function=called("f", "{")), part(0, function={"arguments": "}"})]) == [
        [first, part(0, function={"arguments": "{"}), part(0, function={"arguments": "}"})]
    ]


@pytest.mark.parametrize("id", [{}, {"id": ""}, {"id": None}], ids=str)
def test_G5_another_name_behind_arguments_is_another_call(id: dict[str, Any]) -> None:
    first, second = (part(0, function=called(name, "{}"), **id) for name in "fg")
    passes = {key: value for key, value in first.items() if value is not None}
    assert mend([first], [second]) == [[passes], [passes | {"index": 1, "function": called("g", "{}")}]]
    again = mend([first], [part(0, function=called("f", "{}"))])
    assert again[1] == [part(0, function={"arguments": "{}"})], "the same name again is the same call"


@pytest.mark.parametrize("names", [("f", "g"), ("f", "f")], ids="".join)
def test_G5_a_name_without_index_and_id_behind_arguments_is_another_call(names: tuple[str, str]) -> None:
    pieces = [[part(None, id="", function=called(name, "{}"))] for name in names]
    rest = [part(None, function={"arguments": " "})]
    assert mend(*pieces, rest) == [
        *([part(place, id="", function=called(name, "{}"))] for place, name in enumerate(names)),
        [part(1, function={"arguments": " "})],
    ]


def test_G5_another_id_with_the_name_of_a_custom_tool_is_another_call() -> None:
    first, second = (part(0, id=id, type="custom", custom={"name": "f", "input": id}) for id in "ab")
    assert mend([first], [second]) == [[first], [second | {"index": 1}]]


def test_what_is_no_call_passes() -> None:
    assert mend([None, "x", part(0, id="a", function="odd")]) == [[None, "x", part(0, id="a", function="odd")]]
