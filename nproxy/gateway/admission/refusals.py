"""The errors that clients get for refusals, and the headers about their keys' rates."""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import assert_never

from nproxy.gateway.admission.messages import Level, Refused
from nproxy.gateway.admission.rates import MINUTE
from nproxy.openai.errors import ApiError, invalid_request

FULL = "Too many choices are waiting or in flight; try again later."
UNANSWERED = "The parent process does not answer."
LATE = "The request waited too long in the queue; try again later."


class Unanswered(ApiError):
    """The ledger did not answer in time, so another message now would fail as well. `retry_after` in seconds."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(503, UNANSWERED, type="server_error", code="not_ready", headers=_later(retry_after))


def error_of(refused: Refused, choices: int, field: str = "n") -> ApiError:
    """Return the error for a refused request for so many choices. field: of the request, that asks for them."""
    match refused.reason:
        case "too_wide":
            message = f"The request needs {choices} choices at once; at most {refused.limit} are allowed."
            return invalid_request(message, param=field, code="integer_above_max_value")
        case "requests" | "choices" | "tokens":
            limit = next(level.limit for level in refused.levels if level.what == refused.reason)
            when = duration(refused.retry_after)
            message = f"The limit of {limit} {refused.reason} per minute is reached; try again in {when}."
            return limited(message, "rate_limit_exceeded", refused.retry_after)
        case "queue_full":
            return limited(FULL, "overloaded", refused.retry_after)
        case "timeout":
            return limited(LATE, "overloaded", refused.retry_after)
        case "draining":
            return unavailable("The gateway is shutting down.", "shutting_down", 1.0)
        case _:
            assert_never(refused.reason)


def limited(message: str, code: str, retry_after: float) -> ApiError:
    """Return a 429; `retry_after` in seconds."""
    return ApiError(429, message, type="rate_limit_error", code=code, headers=_later(retry_after))


def unavailable(message: str, code: str, retry_after: float) -> ApiError:
    """Return a 503; `retry_after` in seconds."""
    return ApiError(503, message, type="server_error", code=code, headers=_later(retry_after))


def _later(seconds: float) -> dict[str, str]:
    """Return both headers: `retry-after` has whole seconds, and OpenAI's clients prefer `retry-after-ms`."""
    milliseconds = _milliseconds(seconds)
    return {"retry-after": str(max(1, -(-milliseconds // 1000))), "retry-after-ms": str(milliseconds)}


def rate_headers(levels: Iterable[Level]) -> dict[str, str]:
    """Return OpenAI's x-ratelimit headers, and the same ones for choices."""
    headers: dict[str, str] = {}
    for level in levels:
        remaining = int(level.limit * (MINUTE - level.behind) / MINUTE + 1e-6)  # rounding must not cost a unit
        headers[f"x-ratelimit-limit-{level.what}"] = str(level.limit)
        headers[f"x-ratelimit-remaining-{level.what}"] = str(max(0, remaining))
        headers[f"x-ratelimit-reset-{level.what}"] = duration(level.behind)
    return headers


def duration(seconds: float) -> str:
    """Format a time as in OpenAI's headers: `20ms`, `1s`, `1.5s`, `6m0s`; rounded up to milliseconds."""
    milliseconds = _milliseconds(seconds)
    if 0 < milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{rest / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    if minutes or hours:
        text = f"{minutes}m{text}"
    return f"{hours}h{text}" if hours else text


def _milliseconds(seconds: float) -> int:
    """Return milliseconds, rounded up, without the rounding errors of differences of clock times."""
    return ceil(round(seconds * 1000, 6))
