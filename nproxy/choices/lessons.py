"""Lessons: what an answer teaches about the upstream that gave it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NativeWidth:
    """One call answered with this many choices per prompt.

    asked: the width that the leg was sent with. got: distinct choices per prompt that came back.
    got == asked teaches that native `n` works at least up to `asked`; less teaches the limit.
    """

    asked: int
    got: int


Lesson = NativeWidth
