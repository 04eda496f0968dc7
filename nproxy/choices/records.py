"""Records: what the client has been sent of a choice, kept so that another call can continue from there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from nproxy.openai.chunks import UpstreamChoice
from nproxy.openai.jsonvalue import JSON


class Repeat(Protocol):
    """A call that first repeats what the client has."""

    @property
    def over(self) -> bool:
        """Whether everything that comes from now on is new."""

    def rest(self, piece: UpstreamChoice) -> UpstreamChoice | None:
        """Return what is new in a chunk, None if nothing is. Raises LegFault if it is not what was sent."""


class SentRecord(Protocol):
    """What the client has been sent of one choice. True if that is anything but a role."""

    def __bool__(self) -> bool: ...

    def hear(self, key: str) -> Callable[[bytes], None]:
        """Return a callback that takes texts of this key of the delta which are passed on unparsed.

        They are escaped, as in JSON, and without quotes.
        """

    def note(self, piece: UpstreamChoice) -> None:
        """Take what is sent of a parsed chunk."""

    def again(self) -> Repeat | None:
        """Return how to read the next call, which repeats this record; None if it repeats nothing."""


def light(value: JSON) -> bool:
    """Whether a value says nothing by itself: null, a boolean, a number, or something empty."""
    match value:
        case dict():
            return all(map(light, value.values()))
        case list():
            return all(isinstance(member, dict) and light(member) for member in value)
        case str():
            return not value
        case _:
            return True
