"""Which request ids of a client are used: those that fit into a header and into a log line."""

from __future__ import annotations

import re

HEADER = "x-request-id"

_GOOD = re.compile(r"[A-Za-z0-9._-]{1,128}")


def usable(given: str | None) -> str | None:
    """Return the id if it can be used as it is, else None."""
    return given if given is not None and _GOOD.fullmatch(given) else None
