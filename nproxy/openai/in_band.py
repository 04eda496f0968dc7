"""An error in place of an answer: within a 200, whose status cannot tell whose fault it is."""

from __future__ import annotations

import re

from nproxy.openai.errors import ApiError, wrap_foreign
from nproxy.openai.jsonvalue import JSON, loads

_WHERE = ("code", "status", "status_code", "statusCode", "http_status_code", "type", "error_type")
"""Where servers write it: in the error, or beside an error that is a text (TGI)."""
_OF_MINIMAX = {"1002": 429, "1004": 401, "1008": 402, "1026": 400, "2013": 400, "2049": 401}
"""By the code in `base_resp`: platform.minimax.io/docs/api-reference/errorcode; others are the server's fault."""
_COME_AGAIN = re.compile(r"rate_?limit|too_?many_?requests|quota", re.I)
_REQUEST_AT_FAULT = re.compile(
    r"invalid|bad_?request|validation|not_?found|permission|authenti|content_?(?:filter|policy)|context|too_?long", re.I
)


def error_in_band(body: bytes) -> ApiError:
    """Read an error in place of an answer, with the status that it would have had as an answer."""
    return wrap_foreign(status_in_band(body), "application/json", body)


def status_in_band(body: bytes) -> int:
    """Return the status that the error would have had as an answer: 4xx: the request is at fault, 5xx: the server.

    Read where servers write it, as a number or in digits. If it is nowhere, the words decide: 429 if they are about a
    limit on requests, 400 if they are about the request, else 500.
    """
    try:
        answer = loads(body)
    except ValueError:
        return 500
    error = answer.get("error") if isinstance(answer, dict) else None
    if not error and isinstance(answer, dict) and isinstance(outcome := answer.get("base_resp"), dict):
        return _OF_MINIMAX.get(str(outcome.get("status_code")), 500)
    where = error if isinstance(error, dict) else answer
    values = [where.get(key) for key in _WHERE] if isinstance(where, dict) else []
    statuses = [status for status in map(_status, values) if status is not None]
    if statuses:
        return statuses[0]
    words = " ".join(value for value in values if isinstance(value, str))
    if _COME_AGAIN.search(words):
        return 429
    return 400 if _REQUEST_AT_FAULT.search(words) else 500


def _status(value: JSON) -> int | None:
    if isinstance(value, str) and len(value) == 3 and value.isdecimal():
        value = int(value)
    return value if isinstance(value, int) and 400 <= value <= 599 else None
