"""The request's id, for people who look for one request in many logs."""

from __future__ import annotations

import uuid

from nproxy.openai.request_id import usable


def request_id(given: str | None) -> str:
    """The client's `x-request-id` where it is one that can stand in a header and a log line, else a new one."""
    return usable(given) or str(uuid.uuid4())


def leg_id(id: str, offset: int, attempt: int) -> str:
    """The id that a leg carries upstream: `<id>-<offset>`, retries `<id>-<offset>-r1`, `-r2` ..."""
    return f"{id}-{offset}" if attempt == 0 else f"{id}-{offset}-r{attempt}"
