"""`tools`, `tool_choice` and `parallel_tool_calls`, read or refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from engine.server.asking.tools import read_tools
from nproxy.openai.errors import ApiError


def function(name: str = "f", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


TWO = [function("f"), function("g")]
NAMED = {"type": "function", "function": {"name": "g"}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [function(name) for name in names]}}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tools": None, "tool_choice": None, "parallel_tool_calls": None},
        {"tools": []},
        {"tools": [], "tool_choice": "auto", "functions": [], "function_call": "none"},
        {"tools": TWO, "tool_choice": "none"},
    ],
)
def test_nothing_may_be_called(fields: dict[str, Any]) -> None:
    assert read_tools(fields) is None


@pytest.mark.parametrize(
    ("more", "choice", "names", "parallel", "bound"),
    [
        ({}, "auto", "fg", True, False),
        ({"tool_choice": "auto", "parallel_tool_calls": False}, "auto", "fg", False, False),
        ({"tool_choice": "required", "parallel_tool_calls": True}, "required", "fg", True, True),
        ({"tool_choice": NAMED}, "named", "g", True, True),
        ({"tool_choice": allowed("auto", "f")}, "auto", "f", True, True),
        ({"tool_choice": allowed("auto", "f", "g")}, "auto", "fg", True, False),
        ({"tool_choice": allowed("required", "g")}, "required", "g", True, True),
    ],
)
def test_what_may_be_called(more: dict[str, Any], choice: str, names: str, parallel: bool, bound: bool) -> None:
    tools = read_tools({"tools": [*TWO], **more})
    assert tools is not None
    assert (tools.choice, {*tools.parameters}, tools.parallel, tools.bound) == (choice, {*names}, parallel, bound)
    assert list(tools.listed) == TWO  # the model is told of all, whichever may be called


def test_a_function() -> None:
    schema = {"properties": {"a": {"type": "integer"}}, "required": ["a"]}
    tools = read_tools({"tools": [function("get-it_2", description="d", parameters=schema, strict=True), function()]})
    assert tools is not None and tools.bound
    strict, bare = tools.functions
    assert (strict.name, strict.strict, strict.parameters) == ("get-it_2", True, {"type": "object", **schema})
    assert (bare.strict, bare.parameters) == (
        False,
        {"type": "object", "properties": {}, "additionalProperties": False},
    )


def test_a_list_of_one_type_is_that_type() -> None:
    tools = read_tools({"tools": [function(parameters={"type": ["object"], "properties": {}})]})
    assert tools is not None
    assert tools.functions[0].parameters == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": ["f"]}, "tools.0"),
        ({"tools": TWO * 65}, "tools"),
        ({"tools": [{"function": {"name": "f"}}]}, "tools.0.type"),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools.0.type"),
        ({"tools": [function(), {"type": "function"}]}, "tools.1.function"),
        ({"tools": [{"type": "function", "function": "f"}]}, "tools.0.function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools.0.function.name"),
        ({"tools": [function("")]}, "tools.0.function.name"),
        ({"tools": [function("a b")]}, "tools.0.function.name"),
        ({"tools": [function("f" * 65)]}, "tools.0.function.name"),
        ({"tools": [{"type": "function", "function": {"name": 1}}]}, "tools.0.function.name"),
        ({"tools": [function(description=1)]}, "tools.0.function.description"),
        ({"tools": [function(parameters=[])]}, "tools.0.function.parameters"),
        ({"tools": [function(parameters={"type": "string"})]}, "tools.0.function.parameters"),
        ({"tools": [function(parameters={"type": None})]}, "tools.0.function.parameters"),
        ({"tools": [function(parameters={"type": ["object", "null"]})]}, "tools.0.function.parameters"),
        ({"tools": [function(strict="yes")]}, "tools.0.function.strict"),
        ({"tools": TWO, "parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": NAMED}, "tool_choice"),
        ({"tools": TWO, "tool_choice": "any"}, "tool_choice"),
        ({"tools": TWO, "tool_choice": []}, "tool_choice"),
        ({"tools": TWO, "tool_choice": {"type": "function", "function": {"name": "h"}}}, "tool_choice"),
        ({"tools": TWO, "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tools": TWO, "tool_choice": allowed("none", "f")}, "tool_choice.allowed_tools.mode"),
        ({"tools": TWO, "tool_choice": allowed("auto")}, "tool_choice.allowed_tools.tools"),
        ({"tools": TWO, "tool_choice": allowed("auto", "f", "h")}, "tool_choice"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"tools": TWO, "function_call": {"name": "f"}}, "function_call"),
        ({"function_call": []}, "function_call"),
    ],
)
def test_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        read_tools(fields)
    assert (refused.value.status, refused.value.param) == (400, param)
