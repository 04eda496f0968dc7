"""What a request is conducted by: the configuration, and the names in its answer."""

from __future__ import annotations

from typing import NamedTuple

from nproxy.choices.continuation import ChatContinues
from nproxy.choices.resume import Resume
from nproxy.openai.frozen import frozen


class Names(NamedTuple):
    """What the client reads in every chunk. created: unix seconds. model: as the client asked for it."""

    id: str
    created: int
    model: str


@frozen
class ConductSettings:
    """What the configuration says of a request's conduct; many requests share one."""

    retries_per_leg: int = 1
    """Attempts after the first, resumes included."""
    ping_seconds: float = 15.0
    """A stream that has begun is never silent for longer."""
    headers_after_seconds: float = 30.0
    """A stream without any event begins after so long."""
    gather_seconds: float = 0.05
    """Failures that come so shortly after the first are weighed together."""
    partial: bool = False
    """If some choices are finished and others are lost, the client gets the finished ones."""
    fallback_possible: bool = False
    """Another upstream may be asked. If this one is at fault and the client has at most pings, the conduct ends with
    FallBack instead of an error."""
    fallback_available: bool = False
    """A healthy fallback exists. It is asked instead of waiting for a full upstream."""
    resume: Resume = "off"
    """What happens to a leg that is cut when the client has read some of it."""
    chat_continues: ChatContinues = "no"
    """How the upstream continues a message that has begun."""
