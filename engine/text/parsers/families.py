"""Which parser a model's answers need: as the operator says, or as its chat template shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from engine.errors import ConfigError
from engine.text.parsers import harmony
from engine.text.parsers.calls import CallParser
from engine.text.parsers.harmony import HarmonyParser
from engine.text.parsers.parts import Content, Parser, Part, Plain, ToolArguments, ToolStart
from engine.text.parsers.syntaxes import SYNTAXES
from engine.text.parsers.tags import TagParser, TagSyntax
from engine.text.parsers.thinking import MARKS, ThinkingParser
from nproxy.openai.jsonvalue import JSON

HARMONY = "gpt-oss"
AUTO, NONE = "auto", "none"

TOOL_FAMILIES = (*SYNTAXES, HARMONY)
REASONING_FAMILIES = (*MARKS, HARMONY)

# A template's family is the first one whose signs all occur in it. None: no parser here reads these calls.
_TOOL_SIGNS: Mapping[tuple[str, ...], str | None] = {
    ("<|channel|>",): HARMONY,
    ("<｜tool▁calls▁begin｜>", "```json"): "deepseek",
    ("<｜tool▁calls▁begin｜>",): "deepseek-v3.1",
    ("[TOOL_CALLS]", "[ARGS]"): "mistral-v11",
    ("[TOOL_CALLS]",): "mistral",
    ("<tool_call>", "<function=", "<parameter="): "qwen3-coder",
    ("<tool_call>", "<arg_key>"): "glm",
    ("<seed:tool_call>", "<function=", "<parameter="): "seed-oss",
    ("<function=",): None,
    ("<arg_key>",): None,
    ("<tool_call>",): "hermes",
    ("<|start_header_id|>",): "llama3",
}
_REASONING_SIGNS: Mapping[tuple[str, ...], str | None] = {
    ("<|channel|>",): HARMONY,
    ("[THINK]",): "mistral",
    ("</seed:think>",): "seed-oss",
    ("</think>",): "think",
}


@dataclass(frozen=True, slots=True)
class Families:
    """How a model writes tool calls and reasoning, by family names; None if it does not, or if no parser reads it."""

    tools: str | None = None
    reasoning: str | None = None

    def marks(self, *, calls: bool) -> tuple[str, ...]:
        """Return the texts of the tokens that the parser must see, special or not.

        calls: whether tool calls are parsed.
        """
        if HARMONY in (self.tools, self.reasoning):
            return harmony.SHOWN
        shown = MARKS[self.reasoning].shown if self.reasoning else ()
        return shown + (SYNTAXES[self.tools].shown if calls and self.tools else ())

    def opens_reasoning(self, prompt: str, continued: str | None = None) -> bool:
        """Whether the answer to this prompt begins in the middle of reasoning.

        continued: the message that it continues.
        """
        marks = MARKS.get(self.reasoning or "")
        if marks is None:
            return False
        if continued is not None:
            return continued.rfind(marks.begin) > continued.rfind(marks.end)
        return prompt.rstrip().endswith((marks.begin, marks.begin + marks.aside))


def choose(tools: str, reasoning: str, template: str | None, *, knows_tools: bool) -> Families:
    """Return the families that the operator names; for "auto", those that the model's chat template shows.

    knows_tools: whether the template writes out tools; if it does not, the model gets them in words, and JSON is
    expected. Raises ConfigError for unknown names.
    """
    for option, name, known in (
        ("tool_parser", tools, TOOL_FAMILIES),
        ("reasoning_parser", reasoning, REASONING_FAMILIES),
    ):
        if name not in (AUTO, NONE, *known):
            raise ConfigError(f"{option} must be auto, none, {', '.join(known[:-1])} or {known[-1]}, not {name!r}")
    source = template or ""
    seen_tools = _seen(_TOOL_SIGNS, source, otherwise="json") if knows_tools else "json"
    seen_reasoning = _seen(_REASONING_SIGNS, source, otherwise=None)
    return Families(
        tools=seen_tools if tools == AUTO else _named(tools),
        reasoning=seen_reasoning if reasoning == AUTO else _named(reasoning),
    )


def _seen(signs: Mapping[tuple[str, ...], str | None], source: str, otherwise: str | None) -> str | None:
    for all_of_them, family in signs.items():
        if all(sign in source for sign in all_of_them):
            return family
    return otherwise


def _named(name: str) -> str | None:
    return None if name == NONE else name


def parser_for(
    families: Families,
    *,
    functions: Mapping[str, JSON] | None,
    thinking: bool,
    new_id: Callable[[], str],
    parallel: bool = True,
) -> Parser:
    """Return a fresh parser for one choice.

    functions: the JSON schemas of arguments, by the names of what may be called; None if calls are not parsed.
    thinking: whether the prompt has opened the reasoning. new_id: returns a fresh text of hexadecimal digits, from
    which a call's id is made. parallel: whether calls after the first are reported, too.
    """
    parser: Parser = Plain()
    if HARMONY in (families.tools, families.reasoning):
        parser = HarmonyParser(new_id, calls=functions is not None)
    elif functions is not None and families.tools is not None:
        syntax = SYNTAXES[families.tools]
        if isinstance(syntax, TagSyntax):
            parser = TagParser(syntax, functions, new_id)
        else:
            parser = CallParser(syntax, functions, new_id)
    if (marks := MARKS.get(families.reasoning or "")) is not None:
        parser = _Behind(ThinkingParser(marks, inside=thinking), parser)
    return parser if parallel or functions is None else _FirstCall(parser)


class _Behind:
    """One parser behind another: what the first one returns as content is the second one's text."""

    def __init__(self, first: Parser, second: Parser) -> None:
        self._first = first
        self._second = second

    def feed(self, text: str) -> list[Part]:
        """Add text; return the parts that are certain now."""
        return self._through(self._first.feed(text))

    def finish(self) -> list[Part]:
        """Return the rest of both."""
        return self._through(self._first.finish()) + self._second.finish()

    def _through(self, parts: list[Part]) -> list[Part]:
        through: list[Part] = []
        for part in parts:
            through += self._second.feed(part.text) if isinstance(part, Content) else [part]
        return through


class _FirstCall:
    """Reports the first call only, for clients that want no parallel ones."""

    def __init__(self, parser: Parser) -> None:
        self._parser = parser

    def feed(self, text: str) -> list[Part]:
        """Add text; return the parts that are certain now."""
        return _without_more_calls(self._parser.feed(text))

    def finish(self) -> list[Part]:
        """Return the rest."""
        return _without_more_calls(self._parser.finish())


def _without_more_calls(parts: list[Part]) -> list[Part]:
    return [part for part in parts if not (isinstance(part, ToolStart | ToolArguments) and part.index > 0)]
