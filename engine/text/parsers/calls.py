"""Tool calls in a text: where one begins, its name, and its arguments as they come.

A call is reported as soon as its name and the beginning of its arguments are there, and the arguments are passed on
exactly as the model writes them. What looked like a call and is none stays content. What breaks off later stays the
arguments of a call, unfinished. Only space and separators beside calls, and the marks around them, are left out, and
what breaks off behind a call before it is known whether it is another one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

import regex

from engine.text.parsers.brackets import Brackets
from engine.text.parsers.machine import Machine
from engine.text.parsers.parts import Content, Part, ToolArguments, ToolStart
from nproxy.openai.jsonvalue import EXACT

_OBJECT_HEAD = regex.compile(
    r'\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"(?P<name>[^"\\]{1,256})"\s*,'
    r'\s*"(?:arguments|parameters)"\s*:\s*\{'
)
_IN_LIST = regex.compile(r"\s*(?:(?P<next>,)\s*(?=\{)|\])")
_SPACE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class Syntax:
    """How a family of models writes calls.

    The patterns are matched partially: an incomplete match waits for more text. The end of a match may not depend on
    what follows it in the next piece: a pattern ends with a fixed character or with a lookahead of one.
    """

    opening: regex.Pattern[str]
    """What comes before a call, up to its JSON object or its name; with a group "list" if it opens a JSON
    array of calls.
    """
    closing: regex.Pattern[str] | None = None
    """A mark after a call, possibly one of several."""
    head: regex.Pattern[str] | None = None
    """For a call that is no JSON object: its name (group "name") up to the bracket that begins its arguments."""
    separators: str = _SPACE
    """What else may be between calls."""
    bare: bool = False
    """No mark distinguishes a call from an answer in JSON, so a call must name a known function and have arguments."""
    prefix: str = "call_"
    """What a call's id begins with."""
    ids: int = 32
    """How many digits follow in a call's id."""
    shown: tuple[str, ...] = ()
    """Tokens in these patterns, special or not."""


class CallParser(Machine):
    """One choice's parser for content and calls. `names`: the functions that a bare call may name."""

    def __init__(self, syntax: Syntax, names: Container[str], new_id: Callable[[], str]) -> None:
        self._syntax = syntax
        self._names = names
        self._new_id = new_id
        super().__init__(self._in_content)
        self._searched = 0  # characters of `_text` in which no call begins
        self._lead = ""  # the text that led to the call that is being read
        self._brackets = Brackets()
        self._scanned = 0  # characters of `_text` that `_brackets` has seen
        self._outside = 0  # brackets open around the arguments
        self._calls = 0
        self._listed = False  # inside a JSON array of calls
        self._behind = False  # nothing but calls' marks and separators since the last call

    def finish(self) -> list[Part]:
        """End the choice: return the rest, but not the beginning of a mark or of another call behind a call."""
        return [] if self._behind else super().finish()

    def _in_content(self, parts: list[Part], final: bool) -> bool:
        found = self._syntax.opening.search(self._text, self._searched, partial=not final)
        ended = final and found is None
        before = self._text[: len(self._text) if found is None else found.start()]
        if self._behind and not before.strip(self._syntax.separators):
            text = ""
        else:
            text = before if ended else before.rstrip(_SPACE)
        if text:
            parts.append(Content(text))
            self._behind = False
        if found is None or found.partial:
            self._text = "" if ended else self._text[len(text) :]
            self._searched = len(self._text) if found is None else found.start() - len(text)
            return False
        self._searched = 0
        self._lead, self._text = self._text[len(text) : found.end()], self._text[found.end() :]
        self._listed = found.groupdict().get("list") is not None
        self._begin_call()
        return True

    def _begin_call(self) -> None:
        self._brackets, self._scanned = Brackets(), 0
        self._state = self._at_call

    def _at_call(self, parts: list[Part], final: bool) -> bool:
        """Parse a text that begins with a call, or with what only looked like one."""
        in_object = self._text.startswith("{")
        pattern = _OBJECT_HEAD if in_object else self._syntax.head
        head = None if pattern is None else pattern.match(self._text, partial=not final)
        if head is not None and head.partial:
            return False
        if head is None and in_object:
            return self._whole(parts, final)
        if head is None or not self._known(head["name"]):
            self._no_call(parts, 0 if head is None else head.end())
            return True
        self._start(parts, head["name"])
        self._brackets, self._outside = Brackets(), int(in_object)
        self._brackets.depth = self._outside
        self._text = self._text[head.end() - 1 :]
        self._state = self._in_arguments
        return True

    def _whole(self, parts: list[Part], final: bool) -> bool:
        """Parse a call whose members come in another order, once it is complete."""
        end = self._brackets.feed(self._text[self._scanned :], 0)
        if end is None and not final:
            self._scanned = len(self._text)
            return False
        end = len(self._text) if end is None else self._scanned + end
        call = _read(self._text[:end], needs_arguments=self._syntax.bare)
        if call is None or not self._known(call[0]):
            self._no_call(parts, end)
            return True
        self._start(parts, call[0])
        parts.append(ToolArguments(self._calls - 1, call[1]))
        self._text = self._text[end:]
        self._state = self._after_call
        return True

    def _known(self, name: str) -> bool:
        return not self._syntax.bare or name in self._names

    def _no_call(self, parts: list[Part], length: int) -> None:
        """Treat `length` characters, and what led to them, as content."""
        if text := self._lead + self._text[:length]:
            parts.append(Content(text))
        self._text = self._text[length:]
        self._behind = self._listed = False
        self._state = self._in_content

    def _start(self, parts: list[Part], name: str) -> None:
        identity = self._new_id()[: self._syntax.ids]
        parts.append(ToolStart(self._calls, self._syntax.prefix + identity, name))
        self._calls += 1
        self._behind = True

    def _in_arguments(self, parts: list[Part], final: bool) -> bool:
        end = self._brackets.feed(self._text, self._outside)
        text = self._text[:end]
        if text:
            parts.append(ToolArguments(self._calls - 1, text))
        self._text = self._text[len(text) :]
        if end is not None:
            self._state = self._in_rest if self._outside and not self._brackets.broken else self._after_call
        return end is not None

    def _in_rest(self, parts: list[Part], final: bool) -> bool:
        """Skip members after the arguments, such as an id of the model's own."""
        end = self._brackets.feed(self._text, 0)
        self._text = "" if end is None else self._text[end:]
        if end is not None:
            self._state = self._after_call
        return end is not None

    def _after_call(self, parts: list[Part], final: bool) -> bool:
        """Leave out marks that close the call; in a list the next call may follow."""
        for pattern in (_IN_LIST if self._listed else None, self._syntax.closing):
            found = None if pattern is None else pattern.match(self._text, partial=not final)
            if found is None:
                continue
            if found.partial:
                return False
            self._lead, self._text = self._text[: found.end()], self._text[found.end() :]
            if pattern is _IN_LIST:
                if found["next"]:
                    self._begin_call()
                else:
                    self._listed = False
            return True
        self._state = self._in_content
        return True


def _read(text: str, *, needs_arguments: bool) -> tuple[str, str] | None:
    """Return name and arguments of a call that is a complete JSON object; None if it is no call."""
    try:
        call = EXACT.decode(text)
    except (ValueError, RecursionError):
        return None
    if isinstance(call.get("function"), dict):
        call = call["function"]
    name, arguments = call.get("name"), call.get("arguments", call.get("parameters"))
    if not isinstance(name, str) or not name or (arguments is None and needs_arguments):
        return None
    return name, _as_text(arguments)


def _as_text(arguments: Any) -> str:
    """Return the arguments' JSON text. If a model wrote them as a string that contains an object, that is used."""
    if arguments is None:
        return "{}"
    if isinstance(arguments, str):
        try:
            if isinstance(EXACT.decode(arguments), dict):
                return arguments
        except (ValueError, RecursionError):
            pass
    return json.dumps(arguments, ensure_ascii=False)
