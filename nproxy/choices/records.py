"""Records: what of a choice the client has been sent, kept so that another call can go on behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from nproxy.openai.chunks import UpstreamChoice
from nproxy.openai.jsonvalue import JSON


class Repeat(Protocol):
    """A call of which the first part is what the client has."""

    @property
    def over(self) -> bool:
        """Whether all that comes from now on is new."""

    def rest(self, said: UpstreamChoice) -> UpstreamChoice | None:
        """What of a chunk is new, None where that is nothing. Raises LegFault where it is not what was sent."""


class Record(Protocol):
    """What the client has been sent of one choice; true once that is anything but a role."""

    def __bool__(self) -> bool: ...

    def hear(self, key: str) -> Callable[[bytes], None]:
        """What takes the texts of this key of the delta that go out unparsed: escaped, as in JSON, without quotes."""

    def note(self, said: UpstreamChoice) -> None:
        """Take what goes out of a parsed chunk."""

    def again(self) -> Repeat | None:
        """How the next call is read: what it repeats of this record, None where it repeats nothing."""


def light(value: JSON) -> bool:
    """Whether a value says nothing by itself: nulls, numbers and what is empty."""
    match value:
        case dict():
            return all(map(light, value.values()))
        case list():
            return all(isinstance(member, dict) and light(member) for member in value)
        case str():
            return not value
        case _:
            return True
