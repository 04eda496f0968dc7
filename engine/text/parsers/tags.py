"""Tool calls whose arguments are in tags, one pair for each parameter, with plain text between them.

The arguments are written again as one JSON object. A string is passed on as it comes; any other value, and what may
still become one, when it is whole. If something else than a parameter or the end follows, the arguments stay
unfinished.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import regex

from engine.text.parsers.calls import CallParser, Syntax
from engine.text.parsers.parts import Part, ToolArguments
from engine.text.parsers.values import ANY, Kinds, is_string, json_text, kinds_of
from engine.text.schema_references import referred
from nproxy.openai.jsonvalue import JSON

_BEGINNING = 512  # characters of a value by which it is known to be a string; others wait until it is whole


@dataclass(frozen=True, slots=True, kw_only=True)
class TagSyntax(Syntax):
    """How a family writes calls with parameters in tags; the patterns are like those of Syntax."""

    function: regex.Pattern[str]
    """The function's name (group "name"), up to the first parameter (group "parameter") or the end."""
    parameter: regex.Pattern[str]
    """What comes before a value, with the parameter's name (group "key")."""
    value_end: regex.Pattern[str]
    """What comes after a value."""
    end: regex.Pattern[str]
    """What comes after the last value, up to `closing`."""


class TagParser(CallParser):
    """One choice's parser for content and calls. functions: the schema of the arguments, by the function's name.

    A call without the mark before it, or without arguments, must name one of these functions.
    """

    def __init__(self, syntax: TagSyntax, functions: Mapping[str, JSON], new_id: Callable[[], str]) -> None:
        super().__init__(syntax, functions, new_id)
        self._tags = syntax
        self._functions = functions
        self._schema: JSON = None  # of the arguments that are being read
        self._comma = ""  # what comes before the next of them
        self._kinds = ANY  # of the value that is being read
        self._quoted = False  # the value is a string, whose beginning was passed on

    def _at_call(self, parts: list[Part], final: bool) -> bool:
        head = self._tags.function.match(self._text, partial=not final)
        if head is not None and head.partial:
            return False
        if head is None or not self._is_call(head["name"], with_arguments=head["parameter"] is not None):
            self._no_call(parts, 1 if head is None else head.end())
            return True
        self._start(parts, head["name"])
        self._write(parts, "{")
        self._schema, self._comma = self._functions.get(head["name"]), ""
        self._text = self._text[head.end() :]
        self._state = self._between_values
        return True

    def _is_call(self, name: str, *, with_arguments: bool) -> bool:
        return name in self._functions or (with_arguments and self._lead.strip() != "")

    def _between_values(self, parts: list[Part], final: bool) -> bool:
        parameter = self._tags.parameter.match(self._text, partial=not final)
        if parameter is not None and not parameter.partial:
            key = parameter["key"]
            self._write(parts, f"{self._comma}{json.dumps(key, ensure_ascii=False)}: ")
            self._comma, self._kinds, self._quoted = ", ", self._kinds_of(key), False
            self._text = self._text[parameter.end() :]
            self._state = self._in_value
            return True
        end = self._tags.end.match(self._text, partial=not final)
        if end is not None and not end.partial:
            self._write(parts, "}")
            self._text = self._text[end.end() :]
        elif parameter is not None or end is not None:
            return False
        self._state = self._after_call
        return True

    def _in_value(self, parts: list[Part], final: bool) -> bool:
        end = self._tags.value_end.search(self._text, self._searched, partial=True)
        whole = end is not None and not end.partial
        length = len(self._text) if end is None else end.start()
        if self._quoted or is_string(self._text[: min(length, _BEGINNING)], self._kinds):
            value = self._text[:length]
            before, behind = "" if self._quoted else '"', '"' if whole else ""
            self._write(parts, before + json.dumps(value, ensure_ascii=False)[1:-1] + behind)
            self._quoted = True
            self._text, self._searched = self._text[length:], 0
        elif whole:
            self._write(parts, json_text(self._text[:length], self._kinds))
        else:
            self._searched = length
        if end is None or end.partial:
            return False
        self._text, self._searched = self._text[end.end() - (length if self._quoted else 0) :], 0
        self._state = self._between_values
        return True

    def _kinds_of(self, key: str) -> Kinds:
        """Return the types that the schema allows for an argument."""
        schema = referred(self._schema, self._schema)
        if not isinstance(schema, dict):
            return ANY
        properties = schema.get("properties")
        others = schema.get("additionalProperties")
        return kinds_of(properties.get(key, others) if isinstance(properties, dict) else others, self._schema)

    def _write(self, parts: list[Part], text: str) -> None:
        if text:
            parts.append(ToolArguments(self._calls - 1, text))
