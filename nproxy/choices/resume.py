"""Resuming: how a leg that has begun to answer is made good, and what is kept of it for that."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

from nproxy.choices.continuation import Script
from nproxy.choices.plan import Request
from nproxy.choices.records import Record
from nproxy.choices.replay import Transcript

Resume = Literal["off", "replay", "continue"]
"""How a leg goes on that was cut: not at all; asked again with its seed; asked with what it said as a prefix."""


def recorder(request: Request, how: Resume) -> Callable[[], Record] | None:
    """What begins the record of a choice; None where nothing can be missed, or nothing is made good."""
    if not request.stream or how == "off":
        return None
    return Transcript if how == "replay" else partial(Script, request.dialect)
