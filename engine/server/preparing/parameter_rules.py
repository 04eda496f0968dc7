"""Arguments in tags, one pair for each parameter, with plain text between them: the rule that a schema makes of them.

Parameters come in the order of the schema. A string is any text that does not end the value; if the schema lists its
values, one of these. Its length, pattern and format are not enforced, so `strict` functions may have none. Other values
are JSON of their schema.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from engine.server.asking.structure import any_rule, json_rule, regex_rule, text_rule, token_rule
from engine.server.asking.tools import Function
from engine.server.preparing.marked_text import Rule, TokenOf, text_with_marks
from engine.text.parsers.values import kinds_of
from engine.text.schema_references import part_at, place, referred
from nproxy.openai.errors import invalid_request, shorten
from nproxy.openai.jsonvalue import JSON
from nproxy.openai.refusals import wrong_type

_MOST_OTHERS = 32  # parameters that the schema does not name: a small model might write them forever
_DEPTH = 8
_OTHER_KEY = "[^<>\\s]{1,64}"
_KEY = re.compile(r"[^<>\n]{1,256}")
_ABOUT_ALL = (
    *("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "$dynamicRef", "const", "enum"),
    *("patternProperties", "propertyNames", "unevaluatedProperties", "minProperties", "maxProperties"),
    *("dependentRequired", "dependentSchemas", "dependencies"),
)
"""Keywords about the arguments together, which the rule does not enforce."""
_ABOUT_TEXT = ("pattern", "format", "minLength", "maxLength")
"""Keywords about a string, which it does not enforce either."""


@dataclass(frozen=True, slots=True)
class Tags:
    """An argument as a family's models write it; the texts may contain marks."""

    key: tuple[str, str]
    """What comes before a parameter's name and before its value."""
    line_end: str
    """What comes after a value that is not any text."""
    end: str
    """The mark behind a value."""
    behind: str
    """What comes after that mark."""
    also_ends: str
    """A regular expression of what else ends a value for the parser."""
    loose: bool = False
    """Line ends may be left out."""

    def any_text(self, token_of: TokenOf) -> tuple[str, ...]:
        """Return the lines that define the rule `any_text`: any text that does not end it, and the mark behind it."""
        text = f"TEXT: {regex_rule('(?s:.*)')} & ~{regex_rule(f'(?s:.*){self.also_ends}(?s:.*)')}"
        number = token_of(self.end)
        if number is not None:
            return text, f"any_text: TEXT {token_rule(number)}"
        return text, f"any_text[lazy]: TEXT {text_rule(self.end)}"


def parameters_rule(function: Function, key: str, tags: Tags, token_of: TokenOf) -> Rule:
    """Return the rule of a function's arguments, which uses the tags' rule of any text.

    key: the name of a rule of its own, for parameters that the schema does not name. Raises ApiError 400 for a schema
    that is none, or that cannot be enforced in tags.
    """
    whole, where = function.parameters, function.where
    schema = referred(whole, whole)
    if not isinstance(schema, dict):
        raise wrong_type(where, "a JSON schema", schema)
    if found := [keyword for keyword in _ABOUT_ALL if keyword in schema]:
        raise invalid_request(
            f"'{found[0]}' of all arguments cannot be enforced with this model, which writes each in tags.",
            param=where,
            code="unsupported_parameter",
        )
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict):
        raise wrong_type(f"{where}.properties", "an object", properties)
    if not isinstance(required, list):
        raise wrong_type(f"{where}.required", "an array of strings", required)
    unnamed = [name for name in required if isinstance(name, str) and name not in properties]
    others = schema.get("additionalProperties", "properties" not in schema or bool(unnamed))
    named: dict[str, JSON] = {**properties, **dict.fromkeys(unnamed, others)}
    writer = _Writer(function, tags, token_of)
    arguments = {name: f"({writer.argument(name, one)})" for name, one in named.items() if one is not False}
    rules = [rule if name in required else f"{rule}?" for name, rule in arguments.items()]
    if others is False:
        return Rule(" ".join(rules))
    known = "|".join([re.escape(name) for name in named if re.fullmatch(_OTHER_KEY, name)])
    line = f"{key}: {regex_rule(_OTHER_KEY)}" + (f" & ~{regex_rule(known)}" if known else "")
    return Rule(" ".join([*rules, f"({writer.argument_named(key, others)}){{0,{_MOST_OTHERS}}}"]), (line,))


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes the rules of one function's arguments."""

    function: Function
    tags: Tags
    token_of: TokenOf

    def argument(self, name: str, schema: JSON) -> str:
        """Return the rule of an argument with its tags."""
        if not _KEY.fullmatch(name):
            raise invalid_request(
                f"The name of the parameter {shorten(json.dumps(name))} cannot be written by this model.",
                param=self.function.where,
                code="unsupported_parameter",
            )
        return self._rules(self._text(name.join(self.tags.key)), schema)

    def argument_named(self, key: str, schema: JSON) -> str:
        """Return the rule of an argument whose name matches the rule `key`."""
        before, behind = map(self._text, self.tags.key)
        return self._rules(f"{before} {key} {behind}", schema)

    def _rules(self, before: str, schema: JSON) -> str:
        values, end = self._values(schema), self._text(self.tags.line_end + self.tags.end)
        value = "any_text" if values is None else f"{any_rule(values)} {end}"
        return f"{before} {value} {self._text(self.tags.behind)}"

    def _values(self, schema: JSON, depth: int = _DEPTH) -> list[str] | None:
        """Return the rules of the values that a schema allows; None if they may be any text."""
        whole = self.function.parameters
        meant = referred(schema, whole)
        kinds = kinds_of(meant, whole)
        if isinstance(meant, dict) and "string" in kinds:
            listed = [meant["const"]] if "const" in meant else meant.get("enum")
            if isinstance(listed, list) and listed:
                fitting = [value for value in listed if kinds & kinds_of({"const": value}, None)]
                return [text_rule(value if isinstance(value, str) else json.dumps(value)) for value in fitting]
            several = meant.get("anyOf", meant.get("oneOf"))
            if isinstance(several, list) and depth:
                found = [self._values(one, depth - 1) for one in several]
                return None if None in found else [rule for rules in found if rules for rule in rules]
            self._refuse_unenforced(meant)
            return None
        return None if meant is True else [json_rule(_standing_alone(schema, whole), self.function.where)]

    def _refuse_unenforced(self, schema: dict[str, JSON]) -> None:
        """Raise ApiError 400 if a strict function's string has a form that its rule, any text, does not enforce."""
        if self.function.strict and (found := [keyword for keyword in _ABOUT_TEXT if keyword in schema]):
            raise invalid_request(
                f"'{found[0]}' of a string cannot be enforced with this model, which writes it as plain text.",
                param=self.function.where,
                code="unsupported_parameter",
            )

    def _text(self, text: str) -> str:
        return text_with_marks(text, self.token_of, loose=self.tags.loose)


def _standing_alone(schema: JSON, whole: JSON) -> JSON:
    """Return a part of a schema with all that it refers to."""
    numbers: dict[str, int] = {}
    made = _numbered(schema, numbers)
    definitions: dict[str, JSON] = {}
    while len(definitions) < len(numbers):
        reference = [*numbers][len(definitions)]
        definitions[str(numbers[reference])] = _numbered(part_at(whole, place(reference) or ()), numbers)
    return {**made, "$defs": definitions} if definitions and isinstance(made, dict) else made


def _numbered(part: JSON, numbers: dict[str, int]) -> JSON:
    """Return a part of a schema whose references are to numbered definitions; those that have none yet get one."""
    if isinstance(part, list):
        return [_numbered(one, numbers) for one in part]
    if not isinstance(part, dict):
        return part
    made: dict[str, JSON] = {key: _numbered(one, numbers) for key, one in part.items()}
    if isinstance(reference := part.get("$ref"), str) and place(reference) is not None:
        made["$ref"] = f"#/$defs/{numbers.setdefault(reference, len(numbers))}"
    return made
