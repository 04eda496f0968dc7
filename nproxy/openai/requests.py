"""What nproxy must know of a generation request, validated; everything else stays opaque in the body."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from nproxy.openai.body import Body
from nproxy.openai.dialect import Dialect

Prompt = str | list[int]
"""One prompt of a legacy completion: a text, or token ids."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How wide a request may be: choices per prompt, and choices in all."""

    max_n: int = 128
    max_choices: int = 512


class GenerationRequest(BaseModel):
    """The fields that chat and legacy completions share.

    n: choices per prompt, 1 where the client sent none (or null). n_given: a value was sent, as n or n_cmpl.
    best_of: None where absent. seed: int64. include_usage, continuous_usage: from stream_options.
    temperature: None where absent. logprobs_asked: the client wants log probabilities.
    beam_search: `use_beam_search` is true. prompts: prompts in this request, 1 for chat.
    """

    model_config = ConfigDict(frozen=True, strict=True, arbitrary_types_allowed=True)
    dialect: ClassVar[Dialect]

    body: Body
    model: str
    n: int = 1
    n_given: bool = False
    best_of: int | None = None
    seed: int | None = None
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    temperature: float | None = None
    logprobs_asked: bool = False
    beam_search: bool = False
    prompts: int = 1

    @property
    def choices(self) -> int:
        """Choices in the answer: prompts x n."""
        return self.prompts * self.n

    @property
    def greedy(self) -> bool:
        """Whether the client asked for temperature 0, where all choices come out equal."""
        return self.temperature == 0


class ChatRequest(GenerationRequest):
    """A request to /v1/chat/completions."""

    dialect: ClassVar[Dialect] = Dialect.CHAT


class CompletionRequest(GenerationRequest):
    """A request to /v1/completions.

    prompt: the prompts in order, `prompts` of them. listed: the client sent them as a list of prompts
    (a single text, and a single list of token ids, are not). echo: the prompt comes back with each choice.
    """

    dialect: ClassVar[Dialect] = Dialect.COMPLETIONS

    prompt: tuple[Prompt, ...]
    listed: bool = False
    echo: bool = False


def parse_chat(body: Body, limits: Limits) -> ChatRequest:
    """Validate a chat request; raises ApiError 400 naming the field at fault."""
    raise NotImplementedError


def parse_completion(body: Body, limits: Limits) -> CompletionRequest:
    """Validate a legacy completion request; raises ApiError 400 naming the field at fault."""
    raise NotImplementedError
