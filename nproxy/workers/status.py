"""Merges the status documents of several processes into one of the same form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_ADDED = frozenset({"requests", "choices", "waiting", "legs", "legs_waiting"})
"""Keys whose numbers are added."""
_WORST: Mapping[str, Sequence[Any]] = {
    "up": (False, True, None),
    "resolved": (False, True, None),
    "breaker": ("open", "half_open", "closed"),
}
"""Keys for which the worst value of all processes counts, with their values from the worst to the best. None (unknown)
comes last."""
_NAMES = ("name", "replica")
"""Keys that identify the entries of a list."""


def together(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge documents: counts are added, entries of the same name are merged, of other values the first one counts."""
    whole: Mapping[str, Any] = {}
    for document in documents:
        whole = _mapping(whole, document)
    return dict(whole)


def _mapping(one: Mapping[str, Any], other: Mapping[str, Any]) -> Mapping[str, Any]:
    both = {key: _value(key, one[key], other[key]) for key in one if key in other}
    return {**other, **one, **both}


def _value(key: str, one: Any, other: Any) -> Any:
    if key in _ADDED:
        return one + other
    if key in _WORST:
        return min(one, other, key=_WORST[key].index)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return _mapping(one, other)
    if isinstance(one, list) and isinstance(other, list):
        return _list([*one, *other]) or one
    return one


def _list(entries: list[Any]) -> list[Any]:
    """Merge entries of the same name; empty if the entries have no names."""
    named = [key for key in _NAMES if all(isinstance(entry, Mapping) and key in entry for entry in entries)]
    by_name: dict[Any, Any] = {}
    for entry in entries if named else ():
        known = by_name.get(entry[named[0]])
        by_name[entry[named[0]]] = entry if known is None else _mapping(known, entry)
    return [*by_name.values()]
