"""Answers constrained to calls, if a request wants that: in the family's own syntax, with each function's schema."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from engine.server.asking.structure import any_rule, free_text_to, json_rule, regex_rule, text_rule, token_rule
from engine.server.asking.tools import Function, Tools
from engine.text.parsers.families import HARMONY

_MOST_CALLS = 32  # under a grammar a small model might write calls forever

TokenOf = Callable[[str], int | None]
"""Returns the id of a mark that is a special token, None for one that is ordinary text."""


@dataclass(frozen=True, slots=True)
class Form:
    """Calls as a family's models write them; the texts may contain marks."""

    call: tuple[str, str, str]
    """What comes before a call's name, before its arguments and after them."""
    begin: str = ""
    """What comes before the first call."""
    between: str | None = ""
    """What comes between calls; None if an answer has at most one."""
    end: str = ""
    """What comes after the last call."""
    bare: str = ""
    """Characters that a call may begin with if no mark does; plain text then does not begin with them."""


_JSON_CALL = ('{"name": "', '", "arguments": ', "}")
_FORMS: Mapping[str, Form] = {
    "hermes": Form(('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>"), between="\n"),
    "llama3": Form(('{"name": "', '", "parameters": ', "}"), between="; ", bare="{["),
    "mistral": Form(_JSON_CALL, begin="[TOOL_CALLS][", between=", ", end="]"),
    "mistral-v11": Form(("[TOOL_CALLS]", "[ARGS]", "")),
    "deepseek": Form(
        ("<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n", "\n```<｜tool▁call▁end｜>"),
        begin="<｜tool▁calls▁begin｜>",
        between="\n",
        end="<｜tool▁calls▁end｜>",
    ),
    "deepseek-v3.1": Form(
        ("<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"),
        begin="<｜tool▁calls▁begin｜>",
        end="<｜tool▁calls▁end｜>",
    ),
    "json": Form(_JSON_CALL, begin="[", between=", ", end="]", bare="{[`"),
    HARMONY: Form(("<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", ""), between=None),
}
_MARK = re.compile(r"(<[^<>\s]+>|\[[A-Z_]+\])")


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule, and the lines that define what it uses."""

    start: str
    lines: tuple[str, ...] = ()


def calls_rule(tools: Tools, family: str, token_of: TokenOf) -> Rule:
    """Return the rule of an answer of calls and nothing else; raise ApiError 400 for a function's schema
    that is none.
    """
    return Rule(_calls(tools, _FORMS[family], token_of))


def calls_or_words_rule(tools: Tools, family: str, token_of: TokenOf) -> Rule:
    """Return the rule of text, calls, or text and then calls.

    What looks like a call must be a valid call of a function.
    """
    form = _FORMS[family]
    if form.bare:
        words = rf"(\s*[^\s{re.escape(form.bare)}](?s:.*))?"
        return Rule(f"{regex_rule(words)} | {_calls(tools, form, token_of)}")
    first = _MARK.match(form.begin or form.call[0])
    opening = first[0] if first else ""
    number = token_of(opening)
    if number is not None:
        return Rule(f"{regex_rule('(?s:.*)')} {_calls(tools, form, token_of)} | {regex_rule('(?s:.*)')}")
    without = f"(?s:.*){re.escape(opening)}(?s:.*)"
    return Rule(
        f"to_call {_calls(tools, form, token_of, opened=len(opening))} | WORDS",
        (free_text_to("to_call", opening), f"WORDS: {regex_rule('(?s:.*)')} & ~{regex_rule(without)}"),
    )


def text_with_marks(text: str, token_of: TokenOf) -> str:
    """Return the rule of a text with marks in it; empty for no text."""
    rules = []
    for piece in filter(None, _MARK.split(text)):
        number = token_of(piece)
        rules.append(text_rule(piece) if number is None else token_rule(number))
    return " ".join(rules)


def _calls(tools: Tools, form: Form, token_of: TokenOf, *, opened: int = 0) -> str:
    """Return the calls' rule without the first `opened` characters."""
    one = _one_of(tools.functions, form, token_of)
    first, begin = one, form.begin[opened:]
    if opened and not form.begin:
        first = _one_of(tools.functions, replace(form, call=(form.call[0][opened:], *form.call[1:])), token_of)
    rules = [text_with_marks(begin, token_of), first]
    if tools.choice != "named" and tools.parallel and form.between is not None:
        rules.append(f"({text_with_marks(form.between, token_of)} {one}){{0,{_MOST_CALLS - 1}}}")
    return " ".join(filter(None, [*rules, text_with_marks(form.end, token_of)]))


def _one_of(functions: tuple[Function, ...], form: Form, token_of: TokenOf) -> str:
    return any_rule([_call(function, form, token_of) for function in functions])


def _call(function: Function, form: Form, token_of: TokenOf) -> str:
    before, middle, behind = form.call
    rules = [
        text_with_marks(f"{before}{function.name}{middle}", token_of),
        json_rule(function.parameters, function.where),
        text_with_marks(behind, token_of),
    ]
    return " ".join(filter(None, rules))
