"""What the client is told of tokens, beside their text."""

from __future__ import annotations

from dataclasses import dataclass

from engine.server.asking.members import Members
from nproxy.openai.dialect import Dialect
from nproxy.openai.errors import invalid_request
from nproxy.openai.requests import ChatRequest, CompletionRequest

MOST_LOGPROBS = 20
"""OpenAI's limit of `top_logprobs`, and ours unless the operator sets another."""


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """logprobs: how many of the likeliest tokens are told with each drawn one; None tells no log probabilities.

    prompt_logprobs: the same for the prompt's tokens, in a field of their own. ids: token ids come with the answer.
    as_ids: a token is written as its id, not as its text. special: special tokens are text. keep_stop: the stop
    string or token that ended a choice stays in its text.
    """

    logprobs: int | None = None
    prompt_logprobs: int | None = None
    ids: bool = False
    as_ids: bool = False
    special: bool = False
    keep_stop: bool = False

    @property
    def tokens(self) -> bool:
        """Whether anything is told of single tokens."""
        return self.logprobs is not None or self.ids


def read_output_options(request: ChatRequest | CompletionRequest, most_logprobs: int) -> OutputOptions:
    """Read the fields; raises ApiError 400 naming the one at fault.

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
