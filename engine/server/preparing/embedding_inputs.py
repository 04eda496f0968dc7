"""The inputs of a request for embeddings, in tokens."""

from __future__ import annotations

from collections.abc import Sequence

from engine.messages import Ready
from engine.server.preparing.pooling import Pooling
from engine.server.preparing.prompts import context_length, tokens_of, too_long
from engine.text.tokenizer import Tokenizer
from nproxy.openai.errors import invalid_request
from nproxy.openai.requests import Prompt


def prompts_of(inputs: Sequence[Prompt], tokenizer: Tokenizer, ready: Ready, pooling: Pooling) -> list[tuple[int, ...]]:
    """Return the inputs in tokens; raise ApiError 400 for one that is empty, too long or not the model's."""
    most = min(context_length(ready), pooling.longest or ready.max_model_len)
    prompts: list[tuple[int, ...]] = []
    for given in inputs:
        tokens = tokens_of(given, tokenizer, ready, "input")
        if not given or not tokens:
            raise invalid_request("An input is empty.", param="input", code="empty_string")
        if len(tokens) > most:
            raise too_long(f"An input has {len(tokens)} tokens.", most, "input")
        prompts.append(tokens)
    return prompts
