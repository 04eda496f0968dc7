"""The request's id, for people who look for one request in many logs."""

from __future__ import annotations

from random import getrandbits

from nproxy.openai.request_id import usable


def request_id(given: str | None) -> str:
    """The client's `x-request-id` where it is one that can stand in a header and a log line, else a new one."""
    return usable(given) or _random()


def _random() -> str:
    """A random UUID (RFC 9562, version 4), without an object of its class: it is to be unlike others, and no secret."""
    digits, variant = f"{getrandbits(128):032x}", "89ab"[getrandbits(2)]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


def leg_id(id: str, offset: int, attempt: int) -> str:
    """The id that a leg carries upstream: `<id>-<offset>`, retries `<id>-<offset>-r1`, `-r2` ..."""
    return f"{id}-{offset}" if attempt == 0 else f"{id}-{offset}-r{attempt}"
