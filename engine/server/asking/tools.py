"""What a chat request lets its model call: `tools`, `tool_choice`, `parallel_tool_calls`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from engine.server.asking.members import Members
from nproxy.openai.errors import ApiError, invalid_request
from nproxy.openai.jsonvalue import JSON
from nproxy.openai.refusals import missing, wrong_type

_MOST_TOOLS = 128
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_NO_PARAMETERS: JSON = {"type": "object", "properties": {}, "additionalProperties": False}
_OLD_FIELDS = {"functions": "tools", "function_call": "tool_choice"}

Choice = Literal["none", "auto", "required", "named"]
_WORDS: Mapping[str | None, Choice] = {None: "auto", "none": "none", "auto": "auto", "required": "required"}


@dataclass(frozen=True, slots=True)
class Function:
    """A function that may be called.

    parameters: the JSON schema of its arguments. strict: calls must match it. where: the request's field of that
    schema.
    """

    name: str
    parameters: JSON
    strict: bool
    where: str


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a request.

    listed: the tools for the chat template, as they came. functions: those that may be called; `tool_choice` may narrow
    them. choice: whether there must be a call, and whether of one function. parallel: whether there may be several.
    """

    listed: tuple[Mapping[str, JSON], ...]
    functions: tuple[Function, ...]
    choice: Choice
    parallel: bool

    @property
    def parameters(self) -> dict[str, JSON]:
        """The JSON schemas of the arguments, by the names of the functions that may be called."""
        return {function.name: function.parameters for function in self.functions}

    @property
    def bound(self) -> bool:
        """Whether an answer with a call must be constrained, and is not left to the model."""
        narrowed = len(self.functions) < len(self.listed)
        return self.choice != "auto" or narrowed or any(function.strict for function in self.functions)


def read_tools(fields: Mapping[str, JSON]) -> Tools | None:
    """Read the request's tools; None if nothing may be called. Raises ApiError 400 naming the field at fault."""
    for old, new in _OLD_FIELDS.items():
        if (value := fields.get(old)) not in (None, "none", "auto") and not (old == "functions" and value == []):
            raise invalid_request(
                f"'{old}' is not supported by this engine; use '{new}'.", param=old, code="unsupported_parameter"
            )
    members = Members(fields)
    parallel = members.get("parallel_tool_calls") is None or members.flag("parallel_tool_calls")
    listed = _list(members.get("tools"), "tools")
    if len(listed) > _MOST_TOOLS:
        raise invalid_request(
            f"'tools' may have at most {_MOST_TOOLS} tools.", param="tools", code="array_above_max_length"
        )
    functions = tuple([_function(tool, f"tools.{number}") for number, tool in enumerate(listed)])
    choice, allowed = _choice(fields.get("tool_choice"))
    if not listed and choice in ("required", "named"):
        raise invalid_request("'tool_choice' is only allowed when 'tools' are specified.", param="tool_choice")
    if not listed or choice == "none":
        return None
    if allowed is not None:
        if unknown := allowed - {function.name for function in functions}:
            raise invalid_request(f"Tool choice '{min(unknown)}' is not one of the 'tools'.", param="tool_choice")
        functions = tuple([function for function in functions if function.name in allowed])
    return Tools(tuple(listed), functions, choice, parallel)


def _list(value: JSON, where: str) -> list[Mapping[str, JSON]]:
    """Return an array of objects; empty if there is none."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise wrong_type(where, "an array of objects", value)
    found: list[Mapping[str, JSON]] = []
    for number, item in enumerate(value):
        if not isinstance(item, dict):
            raise wrong_type(f"{where}.{number}", "an object", item)
        found.append(item)
    return found


def _function(tool: Mapping[str, JSON], where: str) -> Function:
    inner = _inner(tool, where)
    description, parameters = inner.get("description"), inner.get("parameters")
    if description is not None and not isinstance(description, str):
        raise wrong_type(f"{where}.function.description", "a string", description)
    if parameters is not None and not isinstance(parameters, dict):
        raise wrong_type(f"{where}.function.parameters", "an object", parameters)
    if parameters is not None and parameters.get("type", "object") not in ("object", ["object"]):
        param = f"{where}.function.parameters"
        raise invalid_request(f"The 'type' of '{param}' must be 'object'.", param=param, code="invalid_value")
    return Function(
        name=_name(inner, f"{where}.function"),
        parameters=_NO_PARAMETERS if parameters is None else {**parameters, "type": "object"},
        strict=Members(inner, f"{where}.function.").flag("strict"),
        where=f"{where}.function.parameters",
    )


def _inner(tool: Mapping[str, JSON], where: str) -> Mapping[str, JSON]:
    """Return the function of a tool; other kinds of tools are refused."""
    kind, inner = tool.get("type"), tool.get("function")
    if kind is None:
        raise missing(f"{where}.type")
    if kind != "function":
        raise invalid_request(
            f"'{where}.type' must be 'function'.", param=f"{where}.type", code="unsupported_parameter"
        )
    if inner is None:
        raise missing(f"{where}.function")
    if not isinstance(inner, dict):
        raise wrong_type(f"{where}.function", "an object", inner)
    return inner


def _name(function: Mapping[str, JSON], where: str) -> str:
    name = function.get("name")
    if name is None:
        raise missing(f"{where}.name")
    if not isinstance(name, str):
        raise wrong_type(f"{where}.name", "a string", name)
    if not _NAME.fullmatch(name):
        raise invalid_request(
            f"Invalid '{where}.name': 1 to 64 letters, digits, underscores and hyphens are allowed.",
            param=f"{where}.name",
            code="invalid_value",
        )
    return name


def _choice(value: JSON) -> tuple[Choice, frozenset[str] | None]:
    """Return what `tool_choice` asks for, and the names that it allows (None: all)."""
    if (value is None or isinstance(value, str)) and value in _WORDS:
        return _WORDS[value], None
    if isinstance(value, dict) and value.get("type") == "function":
        return "named", frozenset({_name(_inner(value, "tool_choice"), "tool_choice.function")})
    if isinstance(value, dict) and value.get("type") == "allowed_tools":
        return _allowed(value.get("allowed_tools"))
    raise _unknown_choice("tool_choice", "none, auto, required, a function or allowed_tools")


def _allowed(value: JSON) -> tuple[Choice, frozenset[str]]:
    where = "tool_choice.allowed_tools"
    if not isinstance(value, dict):
        raise wrong_type(where, "an object", value)
    tools = _list(value.get("tools"), f"{where}.tools")
    if not tools:
        raise missing(f"{where}.tools")
    names = [_name(_inner(tool, f"{where}.tools.{i}"), f"{where}.tools.{i}.function") for i, tool in enumerate(tools)]
    mode = value.get("mode")
    if isinstance(mode, str) and mode in ("auto", "required"):
        return _WORDS[mode], frozenset(names)
    raise _unknown_choice(f"{where}.mode", "auto or required")


def _unknown_choice(where: str, known: str) -> ApiError:
    return invalid_request(f"'{where}' must be {known}.", param=where, code="invalid_value")
