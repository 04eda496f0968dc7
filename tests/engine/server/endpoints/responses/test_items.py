"""Items read, and the messages that they come to."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from engine.server.endpoints.responses.items import messages_of, read_items
from nproxy.openai.errors import ApiError


def read(value: Any) -> list[Any]:
    numbers = itertools.count(1)
    return list(read_items(value, lambda prefix: f"{prefix}_{next(numbers)}"))


def messages(*items: Any, instructions: str | None = None) -> list[dict[str, Any]]:
    return messages_of(read(list(items)), instructions)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


CALL = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"}
OTHER = {**CALL, "call_id": "c2"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "3"}
THOUGHT = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
WORDS = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It is 3."}]}


def called(*ids: str) -> list[dict[str, Any]]:
    return [{"id": id, "type": "function", "function": {"name": "add", "arguments": "{}"}} for id in ids]


def test_a_text_is_the_users_message() -> None:
    [item] = read("Hello")
    assert item == {
        "id": "msg_1",
        "type": "message",
        "status": "completed",
        "role": "user",
        "content": [{"type": "input_text", "text": "Hello"}],
    }
    assert messages_of([item], None) == [user("Hello")]


def test_ids_that_came_are_kept() -> None:
    assert [item["id"] for item in read([{**user("a"), "id": "mine"}, THOUGHT, CALL])] == ["mine", "rs_1", "fc_2"]


def test_instructions_are_the_system_message_and_take_the_first_one_in() -> None:
    assert messages(user("a"), instructions="Be brief.")[0] == {"role": "system", "content": "Be brief."}
    said = messages({"role": "developer", "content": "Be kind."}, user("a"), instructions="Be brief.")
    assert said == [{"role": "system", "content": "Be brief.\n\nBe kind."}, user("a")]
    later = messages(user("a"), {"role": "system", "content": "Now."}, instructions="Be brief.")
    assert [message["role"] for message in later] == ["system", "user", "system"]


def test_what_an_assistant_thinks_says_and_calls_is_one_message() -> None:
    turn = messages(user("1+2?"), THOUGHT, WORDS, CALL, OTHER, RESULT, {**RESULT, "call_id": "c2"}, user("Thanks"))
    assert turn == [
        user("1+2?"),
        {
            "role": "assistant",
            "content": "It is 3.",
            "reasoning_content": "Hm.",
            "tool_calls": called("c1", "c2"),
        },
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
        {"role": "tool", "tool_call_id": "c2", "content": "3"},
        user("Thanks"),
    ]


def test_a_call_without_words_and_words_behind_a_call() -> None:
    assert messages(user("a"), CALL)[1] == {"role": "assistant", "content": None, "tool_calls": called("c1")}
    roles = [(m["role"], m["content"]) for m in messages(user("a"), CALL, RESULT, WORDS)]
    assert roles[1:] == [("assistant", None), ("tool", "3"), ("assistant", "It is 3.")]


def test_a_thought_alone_says_nothing() -> None:
    assert messages(user("a"), THOUGHT)[1] == {"role": "assistant", "content": "", "reasoning_content": "Hm."}
    encrypted = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "S"}], "encrypted_content": "x"}
    assert messages(user("a"), encrypted, WORDS) == messages(user("a"), WORDS)


@pytest.mark.timeout(20)  # to copy all that came before with each item would take minutes
def test_a_long_conversation_takes_time_in_proportion_to_its_length() -> None:
    calls = [{**CALL, "call_id": f"c{number}"} for number in range(60_000)]
    [turn] = messages(*calls)
    assert len(turn["tool_calls"]) == 60_000
    [system] = messages(*[{"role": "system", "content": "Be brief. " * 10}] * 60_000)
    assert system["content"].count("\n\n") == 60_000 - 1


def test_parts_are_joined_as_in_chats_and_outputs_may_have_them() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}]
    assert messages({"role": "user", "content": parts}) == [user("a\nb")]
    assert messages(CALL, {**RESULT, "output": parts})[-1]["content"] == "a\nb"
    refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    assert messages(refusal) == [{"role": "assistant", "content": "No."}]


@pytest.mark.parametrize(
    ("value", "param"),
    [
        (None, "input"),
        (5, "input"),
        (["a"], "input.0"),
        ([user("a"), {"role": "nobody", "content": "a"}], "input.1.role"),
        ([{"role": ["user"], "content": "a"}], "input.0.role"),
        ([{"role": {}, "content": "a"}], "input.0.role"),
        ([{"role": "user"}], "input.0.content"),
        ([{"role": "user", "content": 5}], "input.0.content"),
        ([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}], "input.0.content.0"),
        ([{"role": "user", "content": [{"type": "input_text"}]}], "input.0.content.0.text"),
        ([{"role": "assistant", "content": [{"type": "refusal", "refusal": 5}]}], "input.0.content.0.refusal"),
        ([{"type": "item_reference", "id": "x"}], "input.0.type"),
        ([{"type": ["message"]}], "input.0.type"),
        ([{"type": "function_call", "call_id": "c", "name": "f"}], "input.0.arguments"),
        ([{"type": "function_call", "call_id": 5, "name": "f", "arguments": ""}], "input.0.call_id"),
        ([{"type": "function_call_output", "call_id": "c"}], "input.0.output"),
        ([RESULT], "input"),
    ],
)
def test_what_is_no_item_is_refused_by_its_place(value: Any, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        messages_of(read(value), None)
    assert (refused.value.status, refused.value.param) == (400, param)
