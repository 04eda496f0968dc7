"""The plan: how one client request becomes upstream calls. Decided once, before any call is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from nproxy.choices.capability import Capability
from nproxy.choices.leg import Leg
from nproxy.openai.requests import ChatRequest, CompletionRequest

Mode = Literal["relay", "native", "fanout"]


@dataclass(frozen=True, slots=True)
class Plan:
    """The legs of one request, in index order; `mode` is what the client reads in `x-nproxy-mode`.

    The legs together answer for every client index from 0 to choices - 1 exactly once.
    """

    mode: Mode
    legs: tuple[Leg, ...]


def make_plan(request: ChatRequest | CompletionRequest, capability: Capability, draw: Callable[[], int]) -> Plan:
    """Plan the upstream calls of one request.

    draw: returns a random seed from 0 to 2**31 - 1; called only when the client sent no seed and there are several legs.
    Raises ApiError (status 400) where the request asks for what this upstream cannot do and several legs cannot
    imitate.
    """
    raise NotImplementedError
