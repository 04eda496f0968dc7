"""Typed access to a model's settings, wherever they were read from."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from engine.errors import ModelError

_MOST_LAYERS = 1 << 12  # a hundred are usual; much is made for each layer before the tensors are looked at
_LARGEST = 1 << 62


class Fields:
    """A config with typed access: a missing or wrong field raises a ModelError that names it."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self._where = where

    def get(self, key: str) -> Any:
        """Return a value of any type; None if the key is missing."""
        return self._values.get(key)

    def whole(self, key: str, default: int | None = None) -> int:
        """Return an integer. Raises ModelError if it is none, or missing without a default, or not the usual one."""
        value = self._values.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool):
            raise ModelError(f"{self._where}: {key} must be a whole number, not {value!r}")
        self._demand_usual(key, value)
        return value

    def layers(self, key: str) -> int:
        """Return a number of layers."""
        value = self.whole(key)
        if value > _MOST_LAYERS:
            raise self.refuse(f"{key} is {value}, which no model has")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a number, like `whole`."""
        value = self._values.get(key)
        value = default if value is None else value
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise ModelError(f"{self._where}: {key} must be a number, not {value!r}")
        self._demand_usual(key, value)
        return float(value)

    def _demand_usual(self, key: str, value: float) -> None:
        """Raise ModelError for a number that JSON and GGUF can express and that no computation can use."""
        if not isfinite(value) if isinstance(value, float) else abs(value) > _LARGEST:
            raise self.refuse(f"{key} is {value}, which no model has")

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false. Raises ModelError for anything else; `default` if the key is missing or null."""
        value = self._values.get(key)
        value = default if value is None else value
        if not isinstance(value, bool):
            raise ModelError(f"{self._where}: {key} must be true or false, not {value!r}")
        return value

    def refuse(self, what: str) -> ModelError:
        """Return the error that says what is wrong with the file."""
        return ModelError(f"{self._where}: {what}")

    def ids(self, key: str, value: Any) -> frozenset[int]:
        """Return the token id, or list of token ids, that is the value of `key`."""
        values = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(v, int) and not isinstance(v, bool) for v in values):
            raise self.refuse(f"{key} must be a number or a list of numbers, not {value!r}")
        return frozenset(values)
