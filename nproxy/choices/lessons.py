"""Lessons: what an answer teaches about the upstream that gave it. Kept for later plans; forgetting one is harmless."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RefusedField = Literal["seed", "stream_options"]


@dataclass(frozen=True, slots=True)
class NativeWidth:
    """One call answered with this many choices per prompt.

    asked: the width that the leg was sent with. got: distinct choices per prompt that came back; where the width was
    refused and narrower legs then succeeded, their width.
    got == asked teaches that native `n` works at least up to `asked`; less teaches the limit.
    """

    asked: int
    got: int


@dataclass(frozen=True, slots=True)
class FieldRefused:
    """The upstream refused a call for carrying this field, and took it without."""

    field: RefusedField


@dataclass(frozen=True, slots=True)
class Lacks:
    """An answer came without what it was asked for. logprobs: log probabilities of what was said."""

    what: Literal["logprobs"]


Lesson = NativeWidth | FieldRefused | Lacks
