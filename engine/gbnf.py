"""GBNF, llama.cpp's notation of grammars, made ready for the library's converter to Lark.

https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md. The converter drops leading zeros of escapes,
copies classes into Rust's regular expressions, and gives rules names in which case and hyphens make no difference, nor
an underscore before a capital.
"""

from __future__ import annotations

import re
import sys

from engine.char_classes import CLASS, UNCLOSED, for_rust

_LITERAL = r'"(?:\\.|[^"\\])*"'
_OTHERS = rf'#[^\n]*|<[^<>\s]*>|{UNCLOSED}|"(?:\\.|[^"\\])*\\?\Z'
_TOKEN = re.compile(rf"(?P<literal>{_LITERAL})|(?P<set>{CLASS})|{_OTHERS}|(?P<name>[A-Za-z][A-Za-z0-9_-]*)", re.DOTALL)
_ESCAPED = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)", re.DOTALL)
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
_RAW = {"\t": r"\t", "\n": r"\n", "\r": r"\r", "\x7f": r"\x7f"}


def prepared(grammar: str) -> str:
    """Return a grammar that the converter reads as llama.cpp reads this one."""
    names = _names(grammar)

    def made(token: re.Match[str]) -> str:
        match token.lastgroup:
            case "literal":
                return "".join(_RAW.get(character, character) for character in _ESCAPED.sub(_character, token[0]))
            case "set":
                return for_rust(_ESCAPED.sub(_character, token[0]))
            case "name":
                return names[token[0]]
            case _:
                return token[0]

    return _TOKEN.sub(made, grammar)


def _names(grammar: str) -> dict[str, str]:
    """Return a name for each rule that differs from those of all others, and from the start's in Lark."""
    names, taken = {"root": "root"}, {"root", "start"}
    for token in _TOKEN.finditer(grammar):
        name = token["name"]
        if name is None or name in names:
            continue
        fresh, count = name, 1
        while (folded := _HUMP.sub("_", fresh.replace("-", "_")).lower()) in taken:
            fresh, count = f"{name}-{count}", count + 1
        taken.add(folded)
        names[name] = fresh
    return names


def _character(escape: re.Match[str]) -> str:
    """Return an escape as the character that it means, or as `\\x`, whose zeros stay."""
    digits = escape[1] or escape[2]
    code = 0xD800 if digits is None else int(digits, 16)
    if code < 0x80:
        return f"\\x{code:02x}"
    return escape[0] if 0xD800 <= code < 0xE000 or code > sys.maxunicode else chr(code)
