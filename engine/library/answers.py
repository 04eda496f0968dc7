"""What the engine gives in a program: whole answers, and a stream's pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.messages import Logprobs
from engine.server.answering.choice_text import ChoiceText, message, text_of
from engine.server.answering.output import Piece, Told
from engine.server.asking.order import Order
from engine.text.parsers.parts import Part
from nproxy.openai.jsonvalue import JSON


@dataclass(frozen=True, slots=True)
class Choice:
    """One answer. tokens: those that were drawn, a stop token included, and none of an echo. logprobs: one for each of
    them, where they were asked for.

    finish_reason: "stop", "length" or "tool_calls". message: of a chat, as the wire has it, with reasoning and calls.
    """

    index: int
    text: str
    tokens: tuple[int, ...]
    finish_reason: str
    logprobs: tuple[Logprobs, ...] | None
    message: Mapping[str, JSON]


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a prompt, those of them that were computed before, and tokens of all its choices."""

    prompt: int
    cached: int
    completion: int


@dataclass(frozen=True, slots=True)
class Answer:
    """All choices for one prompt, in order.

    prompt: its tokens. prompt_logprobs: one for each of them, where those were asked for by name, or by `logprobs`
    beside `echo`; None for the first, which follows nothing.
    """

    choices: tuple[Choice, ...]
    usage: Usage
    prompt: tuple[int, ...]
    prompt_logprobs: tuple[Logprobs | None, ...] | None


@dataclass(frozen=True, slots=True)
class Delta:
    """More of one choice. parts: what it says, taken apart: content, reasoning, calls; text: the content among it.

    finish_reason: None before the last.
    """

    index: int
    text: str
    parts: tuple[Part, ...]
    tokens: tuple[int, ...]
    finish_reason: str | None
    logprobs: tuple[Logprobs, ...] | None


def choice_of(index: int, said: ChoiceText, order: Order) -> Choice:
    """A choice that is whole."""
    tokens, logprobs = _told(said.told, order)
    return Choice(index, text_of(said.parts), tokens, said.finish or "", logprobs, message(said.parts))


def delta_of(piece: Piece, order: Order) -> Delta:
    """What a piece says."""
    tokens, logprobs = _told(piece.told, order)
    return Delta(piece.index, text_of(piece.parts), piece.parts, tokens, piece.finish, logprobs)


def _told(told: Sequence[Told], order: Order) -> tuple[tuple[int, ...], tuple[Logprobs, ...] | None]:
    """The tokens of a choice, and their log probabilities where those were asked for."""
    own = [one for one in told if not one.echoed]
    tokens = tuple([one.token for one in own])
    if order.telling.logprobs is None:
        return tokens, None
    return tokens, tuple([one.logprobs for one in own if one.logprobs is not None])
