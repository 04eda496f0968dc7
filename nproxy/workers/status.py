"""What several processes tell of themselves, as one document of the same shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_ADDED = frozenset({"requests", "choices", "waiting", "legs", "legs_waiting"})
"""Keys whose numbers add up."""
_WORST: Mapping[str, Sequence[Any]] = {"up": (False, True, None), "breaker": ("open", "half_open", "closed")}
"""Keys of which anybody's worst word counts, and their words from the worst on; who does not know says least."""
_NAMES = ("name", "replica")
"""Keys by which the entries of a list are told apart."""


def together(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One of several: counts add up, entries of the same name are one, of all else the first one's word counts."""
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
    """Entries of the same name as one; none where they have no names."""
    named = [key for key in _NAMES if all(isinstance(entry, Mapping) and key in entry for entry in entries)]
    by_name: dict[Any, Any] = {}
    for entry in entries if named else ():
        known = by_name.get(entry[named[0]])
        by_name[entry[named[0]]] = entry if known is None else _mapping(known, entry)
    return [*by_name.values()]
