"""Typed access to a model's settings, wherever they were read from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import ModelError


class Fields:
    """A config with typed access: a missing or wrong field raises a ModelError that names it."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self._where = where

    def get(self, key: str) -> Any:
        return self._values.get(key)

    def whole(self, key: str, default: int | None = None) -> int:
        value = self._values.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool):
            raise ModelError(f"{self._where}: {key} must be a whole number, not {value!r}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._values.get(key)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ModelError(f"{self._where}: {key} must be a number, not {value!r}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._values.get(key)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise ModelError(f"{self._where}: {key} must be true or false, not {value!r}")
        return value

    def refuse(self, what: str) -> ModelError:
        return ModelError(f"{self._where}: {what}")

    def ids(self, key: str, value: Any) -> frozenset[int]:
        """Return the token id, or list of token ids, that is the value of `key`."""
        values = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(v, int) and not isinstance(v, bool) for v in values):
            raise self.refuse(f"{key} must be a number or a list of numbers, not {value!r}")
        return frozenset(values)
