"""A chat's messages and switches, read or refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from engine.server.asking.chat import read_chat
from nproxy.openai.errors import ApiError

USER: dict[str, Any] = {"role": "user", "content": "x"}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def called(**function: Any) -> list[dict[str, Any]]:
    return [USER, {"role": "assistant", "tool_calls": [{**CALL, "function": {**CALL["function"], **function}}]}]  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("message", "content"),
    [
        (USER, "x"),
        ({"role": "user", "content": ""}, ""),
        ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "a\nb"),
        ({"role": "assistant", "content": None}, ""),
        ({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, "no"),
        ({"role": "assistant", "tool_calls": [CALL]}, None),  # some templates ask whether there is any
        ({"role": "assistant", "content": "", "tool_calls": [CALL]}, ""),
        ({"role": "assistant", "content": "x", "tool_calls": []}, "x"),
        ({"role": "assistant", "tool_calls": []}, ""),
        ({"role": "tool", "content": "x", "tool_call_id": "1"}, "x"),
        ({"role": "critic"}, ""),  # the template's business
    ],
)
def test_content(message: dict[str, Any], content: str | None) -> None:
    (read,) = read_chat({"messages": [message]}).messages
    assert read["content"] == content
    assert read["role"] == message["role"]


def test_other_members_go_to_the_template() -> None:
    (read,) = read_chat({"messages": [{**USER, "name": "n", "weight": 0}]}).messages
    assert read == {**USER, "name": "n", "weight": 0}


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_goes_back_under_the_names_that_templates_know(name: str) -> None:
    (read,) = read_chat({"messages": [{"role": "assistant", "content": "x", name: "r"}]}).messages
    assert (read["reasoning_content"], read["thinking"]) == ("r", "r")


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([{"role": "user"}], "messages.0.content"),
        ([USER, {"role": "tool", "content": None}], "messages.1.content"),
        ([{"role": "system", "content": None}], "messages.0.content"),
        ([{"content": "x"}], "messages.0.role"),
        ([{"role": 1, "content": "x"}], "messages.0.role"),
        ([{"role": "assistant", "function_call": {"name": "f"}}], "messages.0.function_call"),
        ([{"role": "assistant", "audio": {"id": "1"}}], "messages.0.audio"),
        ([{"role": "assistant", "tool_calls": "f"}], "messages.0.tool_calls"),
        ([{"role": "assistant", "tool_calls": ["f"]}], "messages.0.tool_calls.0"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages.0.tool_calls.0.function"),
        ([{"role": "assistant", "tool_calls": [{"function": 1}]}], "messages.0.tool_calls.0.function"),
        (called(name=None), "messages.1.tool_calls.0.function.name"),
        (called(arguments={}), "messages.1.tool_calls.0.function.arguments"),
    ],
)
def test_messages_refused_by_name(messages: list[Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        read_chat({"messages": messages})
    assert (refused.value.status, refused.value.param) == (400, param)


def test_a_message_without_a_role_lacks_it() -> None:
    with pytest.raises(ApiError, match="Missing required parameter"):
        read_chat({"messages": [{"content": "x"}]})


@pytest.mark.parametrize(
    ("fields", "generation", "continued"),
    [
        ({}, True, False),
        ({"add_generation_prompt": False}, False, False),
        ({"continue_final_message": True}, False, True),
        ({"continue_final_message": True, "add_generation_prompt": False}, False, True),
        ({"continue_final_message": False, "add_generation_prompt": None}, True, False),
    ],
)
def test_where_the_prompt_ends(fields: dict[str, Any], generation: bool, continued: bool) -> None:
    chat = read_chat({"messages": [USER, {"role": "assistant", "content": "y"}], **fields})
    assert (chat.generation, chat.continued) == (generation, continued)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"continue_final_message": True}, "continue_final_message"),
        ({"messages": called(), "continue_final_message": True}, "continue_final_message"),
        (
            {"messages": [USER, {**called()[1], "content": "y"}], "continue_final_message": True},
            "continue_final_message",
        ),
        (
            {
                "messages": [USER, {"role": "assistant", "content": "y"}],
                "continue_final_message": True,
                "add_generation_prompt": True,
            },
            "continue_final_message",
        ),
        ({"continue_final_message": 1}, "continue_final_message"),
        ({"add_generation_prompt": "no"}, "add_generation_prompt"),
        ({"documents": {}}, "documents"),
        ({"documents": ["x"]}, "documents.0"),
        ({"reasoning_effort": 3}, "reasoning_effort"),
        ({"chat_template_kwargs": []}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"raise_exception": 1}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"namespace": 1}}, "chat_template_kwargs"),
    ],
)
def test_switches_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        read_chat({"messages": [USER], **fields})
    assert (refused.value.status, refused.value.param) == (400, param)


@pytest.mark.parametrize(
    ("part", "param", "code"),
    [
        ({"type": "text"}, "messages.0.content.0.text", "missing_required_parameter"),
        ({"type": "text", "text": 5}, "messages.0.content.0.text", "invalid_type"),
        ({"type": "refusal", "text": "No."}, "messages.0.content.0.refusal", "missing_required_parameter"),
        ({"type": "image_url", "image_url": {}}, "messages.0.content", "unsupported_parameter"),
        (5, "messages.0.content", "unsupported_parameter"),
    ],
)
def test_what_is_wrong_with_a_part_is_named(part: Any, param: str, code: str) -> None:
    with pytest.raises(ApiError) as refused:
        read_chat({"messages": [{"role": "user", "content": [part]}]})
    assert (refused.value.param, refused.value.code) == (param, code)
