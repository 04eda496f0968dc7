"""Arguments that a model writes as plain text: which JSON value a text is, by the parameter's schema.

A model that writes calls in tags writes a string as it is, and any other value as JSON, or as Python spells it: some
chat templates show it so.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache, reduce
from typing import TypeAlias

import regex

from engine.text.schema_references import referred
from nproxy.openai.jsonvalue import EXACT, JSON

Kinds: TypeAlias = frozenset[str]
"""Types of JSON values, by JSON Schema's names."""

ANY: Kinds = frozenset({"string", "integer", "number", "boolean", "null", "object", "array"})
"""Those of a parameter of which nothing is known."""

_DEPTH = 8
_SPACE = " \t\r\n"
_IN_PYTHON = {"True": "true", "False": "false", "None": "null"}
_NUMBER = r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?[ \t\r\n]*\Z"
_BEGINNINGS: Mapping[str, str] = {
    "integer": _NUMBER,
    "number": _NUMBER,
    "boolean": r"(?:[tT]rue|[fF]alse)[ \t\r\n]*\Z",
    "null": r"(?:null|None)[ \t\r\n]*\Z",
    "object": r"\{",
    "array": r"\[",
    "string": '"',
}
"""What a JSON value begins with; all of it where that is short."""


def kinds_of(schema: JSON, whole: JSON, depth: int = _DEPTH) -> Kinds:
    """Return the types that a schema allows; `ANY` if it says nothing.

    whole: the schema that its references point into. depth: how deep to look.
    """
    schema = referred(schema, whole)
    if not isinstance(schema, dict) or not depth:
        return ANY
    kinds = ANY
    if isinstance(named := schema.get("type"), str | list):
        kinds &= _with_integers(named if isinstance(named, list) else [named])
    if isinstance(values := [schema["const"]] if "const" in schema else schema.get("enum"), list):
        kinds &= _joined(map(_kinds_of_value, values))
    for keyword in ("anyOf", "oneOf"):
        if isinstance(several := schema.get(keyword), list):
            kinds &= _joined([kinds_of(one, whole, depth - 1) for one in several])
    if isinstance(several := schema.get("allOf"), list):
        kinds = reduce(frozenset.intersection, [kinds_of(one, whole, depth - 1) for one in several], kinds)
    return kinds or ANY


def json_text(text: str, kinds: Kinds) -> str:
    """Return the JSON text of an argument: the text itself if it is JSON of one of these types, else a string of it.

    If a string is one of several types, a text in quotes is a string with quotes.
    """
    stripped = text.strip(_SPACE)
    if kinds != ANY:
        stripped = _IN_PYTHON.get(stripped, stripped)
    wanted = kinds if kinds == ANY else kinds - {"string"}
    try:
        if wanted and wanted & _kinds_of_value(EXACT.decode(stripped)):
            return stripped
    except (ValueError, RecursionError):
        pass
    return json.dumps(text, ensure_ascii=False)


def is_string(text: str, kinds: Kinds) -> bool:
    """Whether an argument that begins with this text can only become a string of it in `json_text`."""
    return _others(kinds).match(text, partial=True) is None


@cache
def _others(kinds: Kinds) -> regex.Pattern[str]:
    """Return the pattern of texts that may become something else than a string of them."""
    wanted = kinds if kinds == ANY else kinds - {"string"}
    beginnings = "|".join(sorted({_BEGINNINGS[kind] for kind in wanted}))
    return regex.compile(rf"[ \t\r\n]*(?:{beginnings})" if wanted else "(?!)")


def _joined(several: Iterable[Kinds]) -> Kinds:
    return frozenset[str]().union(*several)


def _with_integers(names: Iterable[JSON]) -> Kinds:
    kinds = frozenset([name for name in names if isinstance(name, str)])
    return kinds | {"integer"} if "number" in kinds else kinds


def _kinds_of_value(value: JSON) -> Kinds:
    match value:
        case None:
            return frozenset({"null"})
        case bool():
            return frozenset({"boolean"})
        case int():
            return frozenset({"integer", "number"})
        case float():
            return frozenset({"number", "integer"} if value.is_integer() else {"number"})
        case str():
            return frozenset({"string"})
        case list():
            return frozenset({"array"})
        case dict():
            return frozenset({"object"})
