"""What an answer is constrained to: calls, a structure, or both, and reasoning before them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from engine.server.asking.structure import Structure, free_text_to, regex_rule
from engine.server.asking.tools import Tools
from engine.server.preparing.call_rules import calls_or_words_rule, calls_rule
from engine.server.preparing.marked_text import Rule, TokenOf, text_with_marks
from engine.text.parsers.families import HARMONY, Families
from engine.text.parsers.thinking import MARKS

_BESIDE_STRUCTURE = {"llama3": "json"}  # a call that is a bare object cannot be told from an answer that is one
_STRUCTURED = Rule("@answer")
_WORDS = Rule(regex_rule("(?s:.*)"))
_LINE_BREAKS = regex_rule(r"\n{0,2}")


@dataclass(frozen=True, slots=True)
class ModelSyntax:
    """How the loaded model writes calls and reasoning.

    token_of: gives the ids of its special tokens. thinking: whether the prompt has opened the reasoning.
    """

    families: Families
    token_of: TokenOf
    thinking: bool


def required_structure(syntax: ModelSyntax, tools: Tools | None, structure: Structure | None) -> Structure | None:
    """Return what the answer must match; None if it is free.

    If a call is required, the structure is not used; if calls are optional, the answer is a call or matches the
    structure. Raises ApiError 400 for a function's schema that is none.
    """
    calls = tools is not None and tools.choice != "auto"
    rule = _answer(syntax, tools, structure)
    if rule is None:
        return None
    before = _before(syntax, words=not calls and structure is None)
    if structure is not None and not calls:
        if rule == _STRUCTURED and before is None:
            return structure
        return Structure(_grammar(rule, before, structure), structure.field)
    return Structure(_grammar(rule, before, None), "tools")


def _answer(syntax: ModelSyntax, tools: Tools | None, structure: Structure | None) -> Rule | None:
    """Return the rule of the answer after any reasoning."""
    family = syntax.families.tools
    if tools is not None and family is not None:
        if tools.choice != "auto":
            return calls_rule(tools, family, syntax.token_of)
        if structure is not None:
            form = _BESIDE_STRUCTURE.get(family, family)
            calls, words = calls_rule(tools, form, syntax.token_of), _words_rule(syntax, _STRUCTURED)
            return Rule(f"{calls.start} | {words.start}", calls.lines + words.lines)
        if tools.bound and family == HARMONY:
            calls, words = calls_rule(tools, family, syntax.token_of), _words_rule(syntax, _WORDS)
            return Rule(f"{calls.start} | {words.start}", calls.lines + words.lines)
        if tools.bound:
            return calls_or_words_rule(tools, family, syntax.token_of)
    return None if structure is None else _words_rule(syntax, _STRUCTURED)


def _words_rule(syntax: ModelSyntax, rule: Rule) -> Rule:
    """Return the rule of what is said to the user: gpt-oss says it on a channel of its own."""
    if HARMONY not in (syntax.families.tools, syntax.families.reasoning):
        return rule
    return Rule(f"{text_with_marks('<|channel|>final<|message|>', syntax.token_of)} {rule.start}", rule.lines)


def _before(syntax: ModelSyntax, *, words: bool) -> Rule | None:
    """Return the rule of what may come before the answer. words: the answer may be any text."""
    if HARMONY in (syntax.families.tools, syntax.families.reasoning):
        channel, message = (text_with_marks(mark, syntax.token_of) for mark in ("<|channel|>", "<|message|>"))
        end = text_with_marks("<|end|><|start|>assistant", syntax.token_of)
        line = f'earlier: {channel} ("analysis" | "commentary") {message} {_WORDS.start} {end}'
        return Rule("earlier*", (line,))
    marks = MARKS.get(syntax.families.reasoning or "")
    if marks is None:
        return None
    number = syntax.token_of(marks.end)
    line = free_text_to("reasoning", marks.end if number is None else number)
    if syntax.thinking:
        return Rule(f"reasoning {_LINE_BREAKS}", (line,))
    if words and syntax.token_of(marks.begin) is None:
        return None  # any text includes it
    return Rule(f"({text_with_marks(marks.begin, syntax.token_of)} reasoning {_LINE_BREAKS})?", (line,))


def _grammar(rule: Rule, before: Rule | None, structure: Structure | None) -> str:
    """Return one text with everything; the structure's own grammar gets the name that the rule refers to."""
    start, lines = (rule.start, ()) if before is None else (f"{before.start} ({rule.start})", before.lines)
    grammars: list[Mapping[str, str]] = [{"lark_grammar": "\n".join([f"start: {start}", *lines, *rule.lines])}]
    if structure is not None:
        first, *others = json.loads(structure.grammar)["grammars"]
        grammars += [{**first, "name": _STRUCTURED.start.removeprefix("@")}, *others]
    return json.dumps({"grammars": grammars}, ensure_ascii=False)
