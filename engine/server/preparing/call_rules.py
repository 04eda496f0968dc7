"""Answers constrained to calls, if a request wants that: in the family's own syntax, with each function's schema."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.server.asking.structure import any_rule, json_rule, regex_rule, text_rule
from engine.server.asking.tools import Function, Tools
from engine.server.preparing.marked_text import MARK, Rule, TokenOf, text_with_marks
from engine.server.preparing.parameter_rules import Tags, parameters_rule
from engine.text.parsers.families import HARMONY

_MOST_CALLS = 32  # under a grammar a small model might write calls forever


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
    unmarked: str = ""
    """What a call begins with if its mark is missing, which the parser accepts; plain text then does not contain it."""
    tags: Tags | None = None
    """How arguments are written if they are no JSON object."""


_JSON_CALL = ('{"name": "', '", "arguments": ', "}")
_FORMS: Mapping[str, Form] = {
    "hermes": Form(('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>"), between="\n"),
    "qwen3-coder": Form(
        ("<tool_call>\n<function=", ">\n", "</function>\n</tool_call>"),
        between="\n",
        unmarked="<function=",
        tags=Tags(("<parameter=", ">\n"), "\n", "</parameter>", "\n", also_ends=r"</function>\s{0,4}</tool_call>"),
    ),
    "seed-oss": Form(
        ("<seed:tool_call>\n<function=", ">\n", "</function>\n</seed:tool_call>"),
        between="\n",
        tags=Tags(("<parameter=", ">"), "", "</parameter>", "\n", also_ends=r"</function>\s{0,4}</seed:tool_call>"),
    ),
    "glm": Form(
        ("<tool_call>", "\n", "</tool_call>"),
        between="\n",
        tags=Tags(
            ("<arg_key>", "</arg_key>\n<arg_value>"), "", "</arg_value>", "\n", also_ends="</tool_call>", loose=True
        ),
    ),
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


def calls_rule(tools: Tools, family: str, token_of: TokenOf) -> Rule:
    """Return the rule of an answer of calls and nothing else; raise ApiError 400 for a function's schema
    that is none.
    """
    return _calls(tools, _FORMS[family], token_of)


def calls_or_words_rule(tools: Tools, family: str, token_of: TokenOf) -> Rule:
    """Return the rule of text, calls, or text and then calls.

    What looks like a call must be a valid call of a function.
    """
    form = _FORMS[family]
    if form.bare:
        calls, words = _calls(tools, form, token_of), rf"(\s*[^\s{re.escape(form.bare)}](?s:.*))?"
        return Rule(f"{regex_rule(words)} | {calls.start}", calls.lines)
    first = MARK.match(form.begin or form.call[0])
    opening = first[0] if first else ""
    number = token_of(opening)
    never = [form.unmarked] if form.unmarked else []
    calls = _calls(tools, form, token_of, opened=0 if number is not None else len(opening))
    if number is not None:
        return Rule(f"WORDS {calls.start} | WORDS", (_without("WORDS", never), *calls.lines))
    before = (_without("BEFORE", never), f"to_call[lazy]: BEFORE {text_rule(opening)}")
    return Rule(f"to_call {calls.start} | WORDS", (*before, _without("WORDS", [opening, *never]), *calls.lines))


def _without(name: str, texts: Sequence[str]) -> str:
    """Return the line that defines `name`: any text that contains none of these."""
    rules = [regex_rule("(?s:.*)"), *[f"~{regex_rule(f'(?s:.*){re.escape(text)}(?s:.*)')}" for text in texts]]
    return f"{name}: {' & '.join(rules)}"


def _calls(tools: Tools, form: Form, token_of: TokenOf, *, opened: int = 0) -> Rule:
    """Return the calls' rule without the first `opened` characters."""
    before = form.call[0]
    start = f"{form.begin}{before}"[opened:]
    rules = [_text(start, form, token_of), "call"]
    if tools.choice != "named" and tools.parallel and form.between is not None:
        rules.append(f"({_text(form.between + before, form, token_of)} call){{0,{_MOST_CALLS - 1}}}")
    calls = [_call(function, number, form, token_of) for number, function in enumerate(tools.functions)]
    lines = [f"call: {any_rule([call.start for call in calls])}", *[line for call in calls for line in call.lines]]
    if form.tags is not None:
        lines += form.tags.any_text(token_of)
    return Rule(" ".join(filter(None, [*rules, _text(form.end, form, token_of)])), tuple(lines))


def _call(function: Function, number: int, form: Form, token_of: TokenOf) -> Rule:
    """Return the rule of a call from its name on."""
    _, middle, behind = form.call
    if form.tags is None:
        arguments = Rule(json_rule(function.parameters, function.where))
    else:
        arguments = parameters_rule(function, f"OTHER_{number}", form.tags, token_of)
    rules = [_text(f"{function.name}{middle}", form, token_of), arguments.start, _text(behind, form, token_of)]
    return Rule(" ".join(filter(None, rules)), arguments.lines)


def _text(text: str, form: Form, token_of: TokenOf) -> str:
    return text_with_marks(text, token_of, loose=form.tags is not None and form.tags.loose)
