"""Estimates how many tokens a request will spend, before they can be counted."""

from __future__ import annotations

from collections.abc import Mapping

from nproxy.openai.jsonvalue import JSON
from nproxy.openai.requests import Request
from nproxy.openai.usage import MOST_TOKENS

BYTES_PER_TOKEN = 4
"""About right for English text. The other bytes of a body (field names, roles) are few compared with a prompt."""


def guess(request: Request, choices: int) -> int:
    """Estimate a request's tokens: the prompt by its length, and the `max_tokens` of each choice, 0 if it has none.

    At most MOST_TOKENS: a body may hold numbers of 4,300 digits. The estimate is settled when the request is over: the
    key is then charged what the client was told in `usage`.
    """
    most = _most(request.body.fields)
    if (each := request.choice_params) is None:
        return min(guess_prompt(request) + choices * most, MOST_TOKENS)
    return min(guess_prompt(request) + choices * sum(_most(own) or most for own in each) // len(each), MOST_TOKENS)


def guess_prompt(request: Request) -> int:
    """Estimate the tokens of the prompt by its length."""
    return len(request.body.raw) // BYTES_PER_TOKEN


def _most(fields: Mapping[str, JSON]) -> int:
    return _count(fields.get("max_completion_tokens") or fields.get("max_tokens"))


def _count(value: JSON) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
