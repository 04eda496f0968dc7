"""The request's id, for people who look for one request in many logs."""

from __future__ import annotations

from random import getrandbits

from nproxy.openai.request_id import usable


def request_id(given: str | None) -> str:
    """The client's `x-request-id` where it is one that can stand in a header and a log line, else a new one."""
    return usable(given) or _random()


def _random() -> str:
    """A random UUID (RFC 9562, version 4), without an object of its class: it is to be unlike others, and no secret."""
    low, mid, high = getrandbits(32), getrandbits(28), getrandbits(62)
    return f"{low:08x}-{mid >> 12:04x}-4{mid & 0xFFF:03x}-{high >> 48 | 0x8000:04x}-{high & 0xFFFFFFFFFFFF:012x}"


def leg_id(id: str, offset: int, attempt: int) -> str:
    """The id that a leg carries upstream: `<id>-<offset>`, retries `<id>-<offset>-r1`, `-r2` ..."""
    return f"{id}-{offset}" if attempt == 0 else f"{id}-{offset}-r{attempt}"
