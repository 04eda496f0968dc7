"""Patterns of JSON schemas, which are ECMA-262's, for an engine with Rust's regular expressions."""

from __future__ import annotations

import re

from engine.char_classes import CLASS, UNCLOSED, for_rust
from nproxy.openai.jsonvalue import JSON

_CLASSES = re.compile(rf"\\.|(?P<set>{CLASS})|{UNCLOSED}", re.DOTALL)
_LITERAL = ("const", "enum")


def with_classes_for_rust(schema: JSON) -> JSON:
    """Return a schema whose patterns have classes that Rust reads as ECMA-262 does."""
    if isinstance(schema, list):
        return [with_classes_for_rust(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made: dict[str, JSON] = {}
    for key, value in schema.items():
        if key == "pattern" and isinstance(value, str):
            made[key] = _pattern(value)
        elif key == "patternProperties" and isinstance(value, dict):
            made[key] = {_pattern(name): with_classes_for_rust(part) for name, part in value.items()}
        else:
            made[key] = value if key in _LITERAL else with_classes_for_rust(value)
    return made


def _pattern(pattern: str) -> str:
    return _CLASSES.sub(lambda found: found[0] if found["set"] is None else for_rust(found["set"]), pattern)
