"""Character classes of grammars and JSON schemas, written for Rust's regular expressions.

In a class, Rust reads `--`, `&&` and `~~` as operations on sets, and `[` as the beginning of a class inside. In GBNF
and in ECMA-262, whose classes JSON Schema has, they are characters.
https://docs.rs/regex/latest/regex/#character-classes
"""

from __future__ import annotations

import re

CLASS = r"\[(?:\\.|[^\]\\])*\]"
"""A class, as GBNF and ECMA-262 write it."""
UNCLOSED = r"\[(?:\\.|[^\]\\])*\\?\Z"
"""One that does not end. To look for it, too, is what keeps a search from beginning anew at each bracket."""

_IN_PATTERN = re.compile(rf"\\.|(?P<set>{CLASS})|{UNCLOSED}", re.DOTALL)
_UNIT = re.compile(r"\\.|.", re.DOTALL)
_OPERATORS = "-&~["
_SETS = frozenset({r"\d", r"\D", r"\w", r"\W", r"\s", r"\S"})


def pattern_for_rust(pattern: str) -> str:
    """Return a pattern of ECMA-262 with classes that mean the same in Rust's syntax."""
    return _IN_PATTERN.sub(lambda found: found[0] if found["set"] is None else for_rust(found["set"]), pattern)


def for_rust(written: str) -> str:
    """Return a class, with its brackets, that means the same in Rust's syntax."""
    start = 2 if written.startswith("[^") else 1
    units = _UNIT.findall(written[start:-1])
    made, at = [written[:start]], 0
    while at < len(units):
        ranges = at + 2 < len(units) and units[at + 1] == "-" and units[at] not in _SETS
        if ranges:
            made += (_escaped(units[at]), "-", _escaped(units[at + 2]))
        else:
            made.append(_escaped(units[at]))
        at += 3 if ranges else 1
    return "".join((*made, "]"))


def _escaped(unit: str) -> str:
    return f"\\x{ord(unit):02x}" if unit in _OPERATORS else unit
