"""Putting together what came in pieces."""

from __future__ import annotations

from typing import Any

from nproxy.choices.fold import fold, folded, latest
from nproxy.openai.chunks import UpstreamChoice


def test_texts_are_joined_and_names_said_once() -> None:
    pieces: list[Any] = [{"audio": {"id": "a", "data": "x"}}, {"audio": {"id": "a", "data": "y"}}, {"content": None}]
    assert fold(pieces) == {"audio": {"id": "a", "data": "xy"}, "content": None}
    empty: list[Any] = [{"audio": {"id": ""}}, *pieces]
    assert fold(empty) == fold(pieces) and fold(empty[:1] * 2) == {"audio": {"id": ""}}


def test_lists_are_strung_together_and_the_last_of_other_values_counts() -> None:
    assert fold([{"a": [1], "t": 1}, {"a": [2], "t": 2}, {"t": None}]) == {"a": [1, 2], "t": 2}


def test_values_of_several_kinds_do_not_mix() -> None:
    assert fold([{"a": "x"}, {"a": {"b": 1}}, {"a": 3}]) == {"a": 3}


def test_texts_among_lists_become_parts_of_them() -> None:
    """So Mistral's models of reasoning stream: an empty text, lists of thoughts, then texts."""
    thoughts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]
    pieces: list[Any] = [{"content": text} for text in ("", thoughts, thoughts, "Ans", "wer", "", [], thoughts, "!")]
    assert fold(pieces) == {
        "content": [
            *(thoughts * 2),
            {"type": "text", "text": "Answer"},
            *thoughts,
            {"type": "text", "text": "!"},
        ]
    }


def test_one_piece_is_the_whole() -> None:
    whole: dict[str, Any] = {"tool_calls": [{"id": "c", "index": 4}], "x": None}
    assert fold([whole]) == whole


def test_tool_calls_by_their_index() -> None:
    pieces: list[Any] = [
        {"tool_calls": [{"index": 1, "id": "b", "function": {"name": "g", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "}"}}, {"index": 1, "function": {"arguments": "1"}}]},
    ]
    assert fold(pieces)["tool_calls"] == [
        {"id": "a", "function": {"name": "f", "arguments": "{}"}},
        {"id": "b", "function": {"name": "g", "arguments": "1"}},
    ]


def test_H3_a_role_beside_an_empty_text_says_no_text() -> None:
    call: Any = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}]}
    pieces = [
        UpstreamChoice(0, {"content": ""}, "assistant", None, None, {}),
        UpstreamChoice(0, call, None, None, None, {}),
    ]
    delta, _, _ = folded(pieces)
    assert "content" not in delta and "tool_calls" in delta
    assert folded(pieces[:1])[0] == {"content": ""}, "unless nothing else came"


def test_beside_deltas_strings_are_names_and_the_last_counts() -> None:
    filtered: list[Any] = [{"hate": {"severity": "safe"}}, {"hate": {"severity": "low"}}, {}]
    pieces = [{"content_filter_results": said, "matched": "k", "token_ids": [at]} for at, said in enumerate(filtered)]
    assert latest(pieces) == {
        "content_filter_results": {"hate": {"severity": "low"}},
        "matched": "k",
        "token_ids": [0, 1, 2],
    }
