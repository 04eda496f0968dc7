"""What the settings' types say of a place: what was meant by a key or a variable, and whether null may be there."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from typing import Any, get_args, get_origin

from pydantic import BaseModel, SecretStr

from nproxy.config.replicas import DnsName, Replica
from nproxy.config.settings import Config
from nproxy.config.tree import Path

PREFIX = "NPROXY_"

Place = tuple[str, ...]
"""The place of a key in any file: `("upstreams", "[]", "name")`."""


def suggest_key(path: Path, value: object, root: type[BaseModel] = Config) -> str:
    """Return a hint for an unknown key of `root`, or an empty string.

    The hint is a similar key of the same section, else a place for the section that the value looks like, else a place
    where a key of this name belongs. If there is such a place, a key counts as similar only if it is nearly the same.
    """
    key = str(path[-1])
    section = _section_at(path[:-1], root)
    elsewhere = [_show(place) if len(place) > 1 else "the top level" for place, _ in _places(root) if place[-1] == key]
    close = difflib.get_close_matches(key, section.model_fields, n=1) if section is not None else []
    if close and (not elsewhere or _nearly_same(key, close[0])):
        return f"; did you mean {close[0]}?"
    if isinstance(value, dict) and value:
        fitting = [
            place
            for place, inside in _places(root)
            if inside is not None and value.keys() <= inside.model_fields.keys()
        ]
        if fitting:
            top = " at the top level" if len(path) > 1 else ""
            return f"; did you mean {' or '.join(_show(place) + top * (len(place) == 1) for place in fitting)}?"
    return f"; it belongs at {' or '.join(elsewhere)}" if elsewhere else ""


def _nearly_same(key: str, name: str) -> bool:
    """Whether a key is a name in the singular or plural, or a word of it."""
    return key.rstrip("s") == name.rstrip("s") or key in name.split("_")


def suggest_variable(name: str) -> str:
    """Return a hint for a variable that names no setting: most often an underscore is missing."""
    words = name.removeprefix(PREFIX).lower()
    if "__" in words:
        close = difflib.get_close_matches(words.split("__")[0], Config.model_fields, n=1)
        return f"; did you mean {close[0]}?" if close else ""
    meant = [
        *(place for place, _ in _places() if re.fullmatch("_".join(place).replace("[]", r"\d+"), words)),
        *(place for place, _ in _places() if place[-1] == words),
    ]
    if not meant:
        return f"; levels are separated by two underscores, as in {PREFIX}LISTEN__PORT"
    number = re.search(r"\d+", words)
    variable = PREFIX + "__".join(meant[0]).replace("[]", number[0] if number else "0").upper()
    return f"; levels are separated by two underscores: did you mean {variable}?"


def what_null_ends(path: Path) -> str:
    """Return what null at a path would do: switch a section off, or remove a secret. Empty if it does neither."""
    section = _section_at(path[:-1], Config)
    field = None if section is None else section.model_fields.get(str(path[-1]))
    if field is None or type(None) not in get_args(field.annotation):
        return ""
    if _section_in(field.annotation) is not None:
        return "null switches the section off"
    return "null means that there is none" if _may_be_secret(field.annotation) else ""


def _places(section: type[BaseModel] = Config, above: Place = ()) -> Iterator[tuple[Place, type[BaseModel] | None]]:
    """Yield every key that exists, outer ones first, with the type of the section that it holds, or None."""
    for name, field in section.model_fields.items():
        here, inside = (*above, name), _section_in(field.annotation)
        yield here, inside
        if inside is not None:
            yield from _places(inside, (*here, "[]") if get_origin(field.annotation) is tuple else here)


def _section_at(path: Path, root: type[BaseModel]) -> type[BaseModel] | None:
    """Return the section whose keys are at a path below `root`, None if there is none."""
    section: type[BaseModel] | None = root
    for step in path:
        if section is not None and isinstance(step, str):
            section = _section_in(section.model_fields[step].annotation) if step in section.model_fields else None
    return section


def _section_in(annotation: Any) -> type[BaseModel] | None:
    """Return the section type that an annotation is or holds a list of, None if there is none."""
    if get_args(annotation):
        return next((found for part in get_args(annotation) if (found := _section_in(part)) is not None), None)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and annotation not in (Replica, DnsName):
        return annotation  # a replica is written as text
    return None


def _may_be_secret(annotation: Any) -> bool:
    return annotation is SecretStr or any(_may_be_secret(part) for part in get_args(annotation))


def _show(place: Place) -> str:
    return ".".join(place).replace(".[]", "[]")
