"""The conduct of one request: leg events and timer events in, commands out. It decides; the driver acts.

No IO, no clock, no randomness, no logging. The driver carries out the commands in their order, reports what happens as
events in the order in which it happened, and stops at Finish, which is always the last command.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nproxy.choices.capability import Capability
from nproxy.choices.commands import Command
from nproxy.choices.events import Event
from nproxy.choices.plan import Plan
from nproxy.openai.requests import ChatRequest, CompletionRequest


@dataclass(frozen=True, slots=True)
class ConductSettings:
    """What one request is conducted by.

    id, created (unix seconds), shown_model (as the client asked): what the client reads in every chunk.
    retries_per_leg: attempts after the first, each before the leg's first event. ping_seconds: no longer silence than
    this in a stream that has begun. headers_after_seconds: a stream without any event by then begins all the same.
    gather_seconds: failures so shortly after the first are weighed together.
    """

    id: str
    created: int
    shown_model: str
    retries_per_leg: int = 1
    ping_seconds: float = 15.0
    headers_after_seconds: float = 30.0
    gather_seconds: float = 0.05


class Conduct:
    """Conducts one request from its plan to Finish.

    budget: asks for one retry, True takes it. jitter: a number from 0 up to, not including, 1.
    draw: a random seed from 0 to 2**31 - 1, for legs that top up.
    """

    def __init__(
        self,
        request: ChatRequest | CompletionRequest,
        plan: Plan,
        capability: Capability,
        settings: ConductSettings,
        *,
        budget: Callable[[], bool],
        jitter: Callable[[], float],
        draw: Callable[[], int],
    ) -> None:
        raise NotImplementedError

    def start(self) -> list[Command]:
        """The first commands: open the first legs, set the first timers. Called once."""
        raise NotImplementedError

    def receive(self, events: Sequence[Event]) -> list[Command]:
        """Take what happened, give what to do. Emits of one call leave in one write.

        Events of a leg that was cancelled or that is unknown are ignored, and so is everything after Finish.
        """
        raise NotImplementedError
