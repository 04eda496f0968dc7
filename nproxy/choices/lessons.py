"""Lessons: what an answer teaches about the upstream that gave it. Kept for later plans; forgetting one is harmless."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Lack = Literal["logprobs", "stream_usage", "json_usage", "stream_n"]
RefusedField = Literal["seed", "stream_options", "request_id", "prompt_lists"]
Verdict = Literal["suspected", "refuted", "confirmed"]


@dataclass(frozen=True, slots=True)
class NativeWidth:
    """One call was answered with this many choices per prompt.

    asked: the width that the leg was sent with. got: distinct choices per prompt that came back; if the width was
    refused and narrower legs then succeeded, their width. got == asked teaches that native `n` works at least up to
    `asked`; less teaches the limit.
    """

    asked: int
    got: int


@dataclass(frozen=True, slots=True)
class FieldRefused:
    """The upstream refused a call because of this, and accepted it without.

    request_id: the header `x-request-id`. prompt_lists: prompts in a list. All others are fields of the body.
    """

    field: RefusedField


@dataclass(frozen=True, slots=True)
class Lacks:
    """What answers of this upstream lack.

    logprobs: log probabilities of what was said. stream_usage: usage in a stream that was asked for it. json_usage:
    usage of all choices in a whole answer; a stream that reports it for each choice separately reveals such a server.
    stream_n: several choices in a stream, although whole answers may bring them (LiteLLM, ms-swift, LLaMA-Factory).
    """

    what: Lack


@dataclass(frozen=True, slots=True)
class Scores:
    """All choices of an answer came with the log probabilities that were asked for."""


@dataclass(frozen=True, slots=True)
class OneAtATime:
    """Whether the upstream ends a stream as soon as another call comes, as llama-cpp-python does by default.

    suspected: a stream sent `[DONE]` before any of its choices was finished, while the replica had other calls.
    confirmed: a stream without other calls beside it then came to its end. refuted: it ended as early as the first.
    """

    verdict: Verdict


Lesson = NativeWidth | FieldRefused | Lacks | Scores | OneAtATime
