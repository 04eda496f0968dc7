"""What a request is conducted by: what is configured, and what its answer is called."""

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
    """What is configured of it, the same for many requests.

    retries_per_leg: attempts after the first, resumes included. ping_seconds: no longer silence than
    this in a stream that has begun. headers_after_seconds: a stream without any event by then begins all the same.
    gather_seconds: failures so shortly after the first are weighed together. partial: where some choices are finished
    and others are lost, the client gets those that are. fallback: another upstream may be asked, so where this one is
    at fault and the client has nothing yet, the conduct ends with FallBack and says no error. spare: there is one in
    order, which is asked rather than to wait for this one. resume: what becomes of a leg that is cut when the client
    has read of it. chat_continues: how the upstream goes on with a message.
    """

    retries_per_leg: int = 1
    ping_seconds: float = 15.0
    headers_after_seconds: float = 30.0
    gather_seconds: float = 0.05
    partial: bool = False
    fallback: bool = False
    spare: bool = False
    resume: Resume = "off"
    chat_continues: ChatContinues = "no"
