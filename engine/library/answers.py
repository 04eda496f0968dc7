"""What the engine returns to a program: whole answers, and the deltas of a stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.messages import Logprobs
from engine.server.answering.choice_text import ChoiceText, message, text_of
from engine.server.answering.output import Piece, ReportedToken
from engine.server.asking.order import Order
from engine.text.parsers.parts import Part
from nproxy.openai.jsonvalue import JSON


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer."""

    index: int
    text: str
    tokens: tuple[int, ...]
    """The drawn tokens, including a stop token, without those of an echo."""
    finish_reason: str
    """"stop", "length" or "tool_calls"."""
    logprobs: tuple[Logprobs, ...] | None
    """One for each token, if they were asked for."""
    message: Mapping[str, JSON]
    """For a chat, the message as in the API, with reasoning and calls: it can follow the question in the next one."""
    stop_reason: str | int | None
    """The stop string, or the token of `stop_token_ids`, with which it ended; None for any other end."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The number of tokens of a prompt, how many of them were found computed, and of tokens of all its choices."""

    prompt: int
    cached: int
    completion: int


@dataclass(frozen=True, slots=True)
class Answer:
    """All choices for one prompt, in order.

    prompt: its tokens. prompt_logprobs: one for each of them, if `prompt_logprobs` was given, or `logprobs` together
    with `echo`; None for the first token, which follows nothing.
    """

    choices: tuple[Choice, ...]
    usage: Usage
    prompt: tuple[int, ...]
    prompt_logprobs: tuple[Logprobs | None, ...] | None


@dataclass(frozen=True, slots=True)
class Delta:
    """More of one choice."""

    index: int
    text: str
    """The content among the parts."""
    parts: tuple[Part, ...]
    """What the choice says, taken apart: content, reasoning, calls."""
    tokens: tuple[int, ...]
    finish_reason: str | None
    """None before the last delta."""
    logprobs: tuple[Logprobs, ...] | None
    stop_reason: str | int | None
    """In the last delta, as in Choice."""


def choice_of(index: int, choice: ChoiceText, order: Order) -> Choice:
    """Return a choice that is complete."""
    tokens, logprobs = _own_tokens(choice.reported, order)
    text, said = text_of(choice.parts), {"role": "assistant", **message(choice.parts)}
    return Choice(index, text, tokens, choice.finish or "", logprobs, said, choice.stop_reason)


def delta_of(piece: Piece, order: Order) -> Delta:
    """Return a piece as a delta."""
    tokens, logprobs = _own_tokens(piece.reported, order)
    return Delta(piece.index, text_of(piece.parts), piece.parts, tokens, piece.finish, logprobs, piece.stop_reason)


def _own_tokens(reported: Sequence[ReportedToken], order: Order) -> tuple[tuple[int, ...], tuple[Logprobs, ...] | None]:
    """Return the tokens of a choice, and their log probabilities if they were asked for."""
    own = [one for one in reported if not one.echoed]
    tokens = tuple([one.token for one in own])
    if order.output_options.logprobs is None:
        return tokens, None
    return tokens, tuple([one.logprobs for one in own if one.logprobs is not None])
