"""Request ids, by which one request can be found in many logs."""

from __future__ import annotations

from random import getrandbits

from nproxy.openai.request_id import usable


def request_id(given: str | None) -> str:
    """Return the client's `x-request-id` if it is valid for a header and a log line, else a new one."""
    return usable(given) or _random()


def _random() -> str:
    """Return a random UUID (RFC 9562, version 4), without the cost of a UUID object.

    It has to be unique, but is no secret.
    """
    digits, variant = f"{getrandbits(128):032x}", "89ab"[getrandbits(2)]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


def leg_id(id: str, offset: int, attempt: int) -> str:
    """Return the request id of a leg's upstream call: `<id>-<offset>`, for retries `<id>-<offset>-r1`, `-r2` ..."""
    return f"{id}-{offset}" if attempt == 0 else f"{id}-{offset}-r{attempt}"
