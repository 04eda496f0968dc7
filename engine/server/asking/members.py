"""Members of a JSON object, each read as what it must be or refused by its name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeGuard

from nproxy.openai.errors import invalid_request, shorten
from nproxy.openai.jsonvalue import JSON
from nproxy.openai.refusals import above, below, wrong_type


@dataclass(frozen=True, slots=True)
class Members:
    """An object that a client sent. `where`: the prefix of its members' names in error messages, such as "a.0.".

    Null counts as absent. A member of another type, or out of its bounds, raises ApiError 400.
    """

    values: Mapping[str, JSON]
    where: str = ""

    def get(self, name: str) -> JSON:
        """Return the member as it came; None if it is absent."""
        return self.values.get(name)

    def called(self, name: str) -> str:
        """Return the member's name for the client."""
        return self.where + name

    def flag(self, name: str) -> bool:
        """Return a boolean, False if absent."""
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise wrong_type(self.called(name), "a boolean", value)
        return bool(value)

    def object(self, name: str) -> Mapping[str, JSON]:
        """Return an object, empty if absent."""
        value = self.get(name)
        if value is not None and not isinstance(value, dict):
            raise wrong_type(self.called(name), "an object", value)
        return value or {}

    def integer(self, name: str, least: int, most: int | None = None) -> int | None:
        """Return an integer of at least `least`, and at most `most` if that is given; None if absent."""
        value = self.get(name)
        if value is None:
            return None
        if not is_integer(value):
            raise wrong_type(self.called(name), "an integer", value)
        if value < least:
            raise below(self.called(name), value, least)
        if most is not None and value > most:
            raise above(self.called(name), value, most)
        return value

    def number(self, name: str, default: float, least: float, most: float) -> float:
        """Return a number between `least` and `most`, or the default if absent."""
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise wrong_type(self.called(name), "a number", value)
        if not least <= value <= most:
            code = "decimal_below_min_value" if value < least else "decimal_above_max_value"
            bounds = f"expected a value between {least:g} and {most:g}, but got {_short(value)}"
            message = f"Invalid '{self.called(name)}': {bounds}."
            raise invalid_request(message, param=self.called(name), code=code)
        return float(value)


def _short(value: float) -> str:
    """Return a number for an error message; an integer may be larger than any float."""
    return f"{value:g}" if isinstance(value, float) else shorten(str(value))


def is_integer(value: JSON) -> TypeGuard[int]:
    """Whether a JSON value is an integer, and not a boolean (in Python, True is an int)."""
    return isinstance(value, int) and not isinstance(value, bool)
