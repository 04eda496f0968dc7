"""How many tokens a request will spend, before anybody has counted."""

from __future__ import annotations

from nproxy.choices.plan import Request
from nproxy.openai.jsonvalue import JSON

BYTES_PER_TOKEN = 4
"""Of English text, about; other bytes of the body (names of fields, roles) are few beside a prompt."""


MOST = 1 << 53
"""More is nobody's limit, and not every reader of JSON takes it for a whole number; a body may hold 4,300 digits."""


def guess(request: Request, choices: int) -> int:
    """The prompt by its length, and of each choice the most that was asked for; what was not asked for counts 0.

    It is settled when the request is over: a key is charged what the client was told in `usage`.
    """
    fields = request.body.fields
    most = fields.get("max_completion_tokens") or fields.get("max_tokens")
    return min(guess_prompt(request) + choices * _count(most), MOST)


def guess_prompt(request: Request) -> int:
    """The prompt by its length."""
    return len(request.body.raw) // BYTES_PER_TOKEN


def _count(value: JSON) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
