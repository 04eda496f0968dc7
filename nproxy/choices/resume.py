"""Resuming: how a leg that is cut while it answers is recovered, and what is recorded for that."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

from nproxy.choices.continuation import EchoScript, Script
from nproxy.choices.records import SentRecord
from nproxy.choices.replay import Transcript
from nproxy.openai.requests import CompletionRequest, Request

Resume = Literal["off", "replay", "continue"]
"""How a leg that was cut continues: not at all; called again with its seed; called with what it said as a prefix."""


def recorder(request: Request, how: Resume) -> Callable[[], SentRecord] | None:
    """Return what makes the record of a choice; None if the client misses nothing, or nothing is recovered."""
    if not request.stream or how == "off":
        return None
    if how == "replay":
        return Transcript
    echo = isinstance(request, CompletionRequest) and request.echo
    return partial(EchoScript if echo else Script, request.dialect)
