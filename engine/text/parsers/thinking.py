"""Reasoning between two marks at the beginning of an answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import regex

from engine.text.parsers.machine import Machine
from engine.text.parsers.parts import Content, Part, Reasoning


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks before and after the reasoning. aside: one that a template may write behind the first."""

    begin: str
    end: str
    aside: str = ""

    @property
    def shown(self) -> tuple[str, ...]:
        """The marks, which a parser must see even if they are special tokens."""
        return self.begin, self.end


MARKS: Mapping[str, Marks] = {
    "think": Marks("<think>", "</think>"),  # Qwen3, DeepSeek R1, SmolLM3
    "mistral": Marks("[THINK]", "[/THINK]"),  # Magistral
    "seed-oss": Marks("<seed:think>", "</seed:think>", "<seed:cot_budget_reflect>"),
}


class ThinkingParser(Machine):
    """One choice's parser for reasoning, then content. Space beside the marks is left out."""

    def __init__(self, marks: Marks, *, inside: bool) -> None:
        """`inside`: the prompt already contains the first mark."""
        super().__init__(self._in_reasoning if inside else self._at_start)
        self._begin = regex.compile(r"\s*" + regex.escape(marks.begin) + r"\s*")
        self._end = regex.compile(regex.escape(marks.end))
        self._bare = inside  # nothing but space since the mark

    def _at_start(self, parts: list[Part], final: bool) -> bool:
        found = self._begin.match(self._text, partial=not final)
        if found is None:
            self._bare = False
            self._state = self._in_content
            return True
        if found.end() == len(self._text) and not final:
            return False
        self._bare = True
        self._text = self._text[found.end() :]
        self._state = self._in_reasoning
        return True

    def _in_reasoning(self, parts: list[Part], final: bool) -> bool:
        found = self._end.search(self._text, partial=not final)
        before = self._text if found is None else self._text[: found.start()]
        kept = before if final and found is None else before.rstrip()
        if text := kept.lstrip() if self._bare else kept:
            parts.append(Reasoning(text))
            self._bare = False
        if found is None or found.partial:
            self._text = self._text[len(kept) :]
            return False
        self._text = self._text[found.end() :]
        self._bare = True
        self._state = self._in_content
        return True

    def _in_content(self, parts: list[Part], final: bool) -> bool:
        text = self._text.lstrip() if self._bare else self._text
        if text:
            parts.append(Content(text))
            self._bare = False
        self._text = ""
        return False
