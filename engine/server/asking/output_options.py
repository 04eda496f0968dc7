"""What the client gets about tokens, besides their text."""

from __future__ import annotations

from dataclasses import dataclass

from engine.server.asking.members import Members
from nproxy.openai.dialect import Dialect
from nproxy.openai.errors import invalid_request
from nproxy.openai.requests import ChatRequest, CompletionRequest

MOST_LOGPROBS = 20
"""OpenAI's limit of `top_logprobs`, and the engine's unless the operator sets another."""


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """What is returned about tokens."""

    logprobs: int | None = None
    """How many of the likeliest tokens are returned with each drawn one; None returns no log probabilities."""
    prompt_logprobs: int | None = None
    """The same for the prompt's tokens, in a field of their own."""
    ids: bool = False
    """Whether token ids come with the answer."""
    as_ids: bool = False
    """Whether a token is written as its id, not as its text."""
    special: bool = False
    """Whether special tokens are part of the text."""
    keep_stop: bool = False
    """Whether the stop string or token that ended a choice stays in its text."""

    @property
    def tokens(self) -> bool:
        """Whether anything is returned about single tokens."""
        return self.logprobs is not None or self.ids


def read_output_options(request: ChatRequest | CompletionRequest, most_logprobs: int) -> OutputOptions:
    """Read the fields; raise ApiError 400 naming the field at fault.

    Chat has `logprobs` (a boolean) and `top_logprobs`, legacy completions a number in `logprobs`.
    """
    members = Members(request.body.fields)
    name = "top_logprobs" if request.dialect is Dialect.CHAT else "logprobs"
    logprobs = members.integer(name, 0, most_logprobs)
    if request.dialect is Dialect.CHAT:
        logprobs = (logprobs or 0) if request.logprobs_asked else None
    elif members.get("top_logprobs") is not None and members.integer("top_logprobs", 0, most_logprobs):
        raise invalid_request(
            "'top_logprobs' is a field of chat completions; here 'logprobs' is the number.", param="top_logprobs"
        )
    prompt_logprobs = members.integer("prompt_logprobs", 0, most_logprobs)
    if prompt_logprobs is not None and request.stream:
        raise invalid_request("'prompt_logprobs' cannot be streamed.", param="prompt_logprobs")
    skip = members.get("skip_special_tokens") is not None and not members.flag("skip_special_tokens")
    return OutputOptions(
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        ids=members.flag("return_token_ids"),
        as_ids=members.flag("return_tokens_as_token_ids"),
        special=skip,
        keep_stop=members.flag("include_stop_str_in_output"),
    )
