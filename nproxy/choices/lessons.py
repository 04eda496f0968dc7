"""Lessons: what an answer teaches about the upstream that gave it. Kept for later plans; forgetting one is harmless."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Lack = Literal["logprobs", "stream_usage", "json_usage", "stream_n"]
RefusedField = Literal["seed", "stream_options", "request_id", "prompt_lists"]
Verdict = Literal["suspected", "refuted", "confirmed"]


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
    """The upstream refused a call for carrying this, and took it without.

    request_id: the header `x-request-id`. prompt_lists: prompts in a list. All others are fields of the body.
    """

    field: RefusedField


@dataclass(frozen=True, slots=True)
class Lacks:
    """What answers of this upstream lack.

    logprobs: log probabilities of what was said. stream_usage: usage in a stream that was asked for it. json_usage:
    usage of all choices in a whole answer; a stream that tells it for each choice apart gives such a server away.
    stream_n: several choices in a stream, be it that whole answers bring them (LiteLLM, ms-swift, LLaMA-Factory).
    """

    what: Lack


@dataclass(frozen=True, slots=True)
class Scores:
    """All choices of an answer came with the log probabilities that were asked for."""


@dataclass(frozen=True, slots=True)
class OneAtATime:
    """Whether the upstream ends a stream as soon as another call comes, as llama-cpp-python does by default.

    suspected: a stream said `[DONE]` before any of its choices was finished, while other calls were beside it.
    confirmed: a stream with nothing beside it has then come to its end. refuted: it has ended as early as that.
    """

    verdict: Verdict


Lesson = NativeWidth | FieldRefused | Lacks | Scores | OneAtATime
