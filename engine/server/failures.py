"""Turns what the core says of a group that failed, or its end, into the client's error."""

from __future__ import annotations

from collections.abc import Sequence

from engine.messages import GroupFailed
from nproxy.openai.errors import ApiError, invalid_request, overloaded

_RETRY_SECONDS = 1


def error_of(failed: GroupFailed, rules: Sequence[str] = ()) -> ApiError:
    """Return a failure as the client's error. rules: the request's fields that exclude tokens, as in `groups.rules`."""
    match failed.kind:
        case "refused":
            return invalid_request(failed.message, code="request_too_large")
        case "unsatisfiable":
            names = " and ".join([f"'{name}'" for name in rules])
            message = f"No token is left to sample under {names}." if rules else failed.message
            return invalid_request(message, param=rules[0] if rules else None, code="unsatisfiable_rules")
        case "grammar":
            return invalid_request(failed.message, param=rules[-1] if rules else None, code="unsatisfiable_rules")
        case "busy":
            return overloaded(failed.message, retry_after=_RETRY_SECONDS)
        case "failed":
            return ApiError(500, failed.message, type="server_error", code="engine_error")


def stopped() -> ApiError:
    """Return the error of requests whose core has ended."""
    return ApiError(503, "The engine has stopped.", type="server_error", code="engine_stopped")
