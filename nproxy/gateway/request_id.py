"""Request ids, by which one request can be found in many logs."""

from __future__ import annotations

from random import getrandbits

from nproxy.openai.request_id import usable

_VERSION_4 = (4 << 76) | (0b10 << 62)
"""The bits of a random UUID that are fixed: its version and its variant."""
_RANDOM = ~((0xF << 76) | (0b11 << 62))


def request_id(given: str | None) -> str:
    """Return the client's `x-request-id` if it is valid for a header and a log line, else a new one."""
    return usable(given) or _random()


def _random() -> str:
    """Return a random UUID (RFC 9562, version 4), without the cost of a UUID object.

    It has to be unique, but is no secret.
    """
    digits = f"{getrandbits(128) & _RANDOM | _VERSION_4:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def leg_id(id: str, offset: int, attempt: int) -> str:
    """Return the request id of a leg's upstream call: `<id>-<offset>`, for retries `<id>-<offset>-r1`, `-r2` ..."""
    return f"{id}-{offset}" if attempt == 0 else f"{id}-{offset}-r{attempt}"
