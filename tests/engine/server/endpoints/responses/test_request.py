"""Fields of /v1/responses: the chat that they come to, what is repeated, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from engine.server.endpoints.responses.request import Asked, read_asked, renamed
from nproxy.openai.errors import ApiError, invalid_request

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"type": "function", "name": "add", "description": "Adds.", "parameters": SCHEMA, "strict": True}


def asked(**fields: Any) -> Asked:
    return read_asked({"model": "m", "input": "hi", **fields}, lambda prefix: prefix)


def chat(**fields: Any) -> dict[str, Any]:
    return asked(**fields).chat([])


def test_a_plain_request() -> None:
    assert chat() == {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ({"max_output_tokens": 5}, {"max_completion_tokens": 5}),
        ({"parallel_tool_calls": False, "stop": ["x"]}, {"parallel_tool_calls": False, "stop": ["x"]}),
        ({"temperature": 0.5, "top_p": 0.9, "seed": 1}, {"temperature": 0.5, "top_p": 0.9, "seed": 1}),
        ({"text": {"format": {"type": "text"}}}, {"response_format": {"type": "text"}}),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
                }
            },
        ),
        (
            {"tools": [TOOL]},
            {"tools": [{"type": "function", "function": {k: v for k, v in TOOL.items() if k != "type"}}]},
        ),
        ({"tool_choice": "required"}, {"tool_choice": "required"}),
        (
            {"tool_choice": {"type": "function", "name": "add"}},
            {"tool_choice": {"type": "function", "function": {"name": "add"}}},
        ),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "add"}]}},
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "add"}}]},
                }
            },
        ),
        ({"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}),
        ({"include": ["message.output_text.logprobs"]}, {"logprobs": True, "top_logprobs": 0}),
        ({"top_logprobs": 3}, {"logprobs": True, "top_logprobs": 3}),
        ({"metadata": {"a": "b"}, "user": "u", "store": False, "background": False, "truncation": "disabled"}, {}),
        ({"truncation": "auto"}, {}),
    ],
    ids=str,
)
def test_each_field_has_its_place_in_the_chat(sent: dict[str, Any], meant: dict[str, Any]) -> None:
    assert chat(**sent) == {**chat(), **meant}


def test_items_before_come_before_and_instructions_are_not_theirs() -> None:
    earlier = read_asked({"model": "m", "input": "first", "instructions": "Old."}, lambda prefix: f"{prefix}_1")
    given = asked(instructions="Brief.").chat(earlier.items)
    assert [message["content"] for message in given["messages"]] == ["Brief.", "first", "hi"]


@pytest.mark.parametrize("before", [True, False])
def test_an_item_is_in_a_conversation_once(before: bool) -> None:
    """As if a client sends the last answer and `previous_response_id`: the model would read it twice."""
    said = {"type": "message", "id": "msg_1", "role": "assistant", "content": "one"}
    earlier = asked(input=[said]).items if before else []
    more = {"role": "user", "content": "two"}
    request = asked(input=[said, more] if before else [more, said, said])
    with pytest.raises(ApiError, match="already has an item 'msg_1'") as raised:
        request.chat(earlier)
    assert (raised.value.status, raised.value.param) == (400, "input.0.id" if before else "input.2.id")


def test_what_the_response_repeats() -> None:
    repeated = asked(temperature=0.5, tools=[TOOL], metadata={"a": "b"}, text={"format": {"type": "text"}}).repeated()
    assert repeated["temperature"] == 0.5
    assert repeated["tools"] == [TOOL]
    assert (repeated["top_p"], repeated["tool_choice"], repeated["store"]) == (1.0, "auto", True)
    assert asked(store=False).repeated()["store"] is False
    assert asked(tool_choice="required").repeated()["tool_choice"] == "required"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"n": 2}, "n"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"metadata": {"a": "m" * 513}}, "metadata"),
        ({"metadata": {"m" * 65: "a"}}, "metadata"),
        ({"messages": []}, "messages"),
        ({"input": None}, "input"),
        ({"instructions": 5}, "instructions"),
        ({"previous_response_id": 5}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"background": 0}, "background"),
        ({"user": 5}, "user"),
        ({"max_tool_calls": "a"}, "max_tool_calls"),
        ({"truncation": "middle"}, "truncation"),
        ({"background": True}, "background"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"include": ["file_search_call.results"]}, "include.0"),
        ({"include": "all"}, "include"),
        ({"text": {"verbosity": "high"}}, "text.verbosity"),
        ({"text": {"colour": 1}}, "text.colour"),
        ({"text": "json"}, "text"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"store": "yes"}, "store"),
        ({"stream_options": {"include_usage": True}}, "stream_options.include_usage"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"top_logprobs": -1}, "top_logprobs"),
    ],
    ids=str,
)
def test_what_is_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        chat(**fields)
    assert (refused.value.status, refused.value.param) == (400, param)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("messages", "input"),
        ("messages.3.content", "input"),
        ("max_completion_tokens", "max_output_tokens"),
        ("response_format.json_schema.schema", "text.format.schema"),
        ("tools.2.function.name", "tools.2.name"),
        ("tool_choice.function.name", "tool_choice.name"),
        ("temperature", "temperature"),
    ],
)
def test_errors_name_the_clients_own_fields(theirs: str, ours: str) -> None:
    error = renamed(invalid_request(f"Invalid '{theirs}': no.", param=theirs, code="c"))
    assert (error.param, error.message, error.code) == (ours, f"Invalid '{ours}': no.", "c")
