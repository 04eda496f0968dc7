"""What may be asked of the engine in a program: the fields of the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

Messages = Sequence[Mapping[str, Any]]
"""A conversation as the wire has it: objects with `role` and `content`."""


class Wishes(TypedDict, total=False):
    """What may be asked for, by the names, meanings and bounds of the wire; what is left out is as there.

    model: the name of a LoRA adapter. logprobs: how many of the likeliest tokens are told with each drawn one, for
    chats, too.
    """

    model: str
    n: int
    best_of: int
    seed: int
    max_tokens: int
    min_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[str, float]
    bad_words: Sequence[str]
    allowed_token_ids: Sequence[int]
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    logprobs: int
    choice_params: Sequence[Mapping[str, Any]]
    response_format: Mapping[str, Any]
    structured_outputs: Mapping[str, Any]


class ChatWishes(Wishes, total=False):
    """What a chat has beyond that."""

    tools: Sequence[Mapping[str, Any]]
    tool_choice: str | Mapping[str, Any]
    parallel_tool_calls: bool
    chat_template_kwargs: Mapping[str, Any]
