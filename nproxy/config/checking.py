"""Validation of plain data as a type, with each error at the place where the part was written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from nproxy.config.hints import suggest_key
from nproxy.config.sections import CONFLICTS
from nproxy.config.tree import ConfigError, Path, Problem, Tree
from nproxy.config.values import NAME, PATH

Model = TypeVar("Model", bound=BaseModel)


def checked(model: type[Model], tree: Tree, context: Mapping[str, Any]) -> Model:
    """Read a tree into `model`.

    Raises ConfigError with all problems, in the order in which they were written; no message quotes a value.
    """
    settings, problems = read_partly(model, tree, context)
    if problems:
        raise ConfigError(in_order(problems, tree))
    return settings


def read_partly(model: type[Model], tree: Tree, context: Mapping[str, Any]) -> tuple[Model, list[Problem]]:
    """Read what is right in a tree into `model`; returns it, and all problems. If there are any, see `sections`.

    Raises ConfigError with the problems if nothing can be read.
    """
    try:
        return model.model_validate(tree.data, context=dict(context)), []
    except ValidationError as error:
        # not the cause of any other error: it holds the inputs, and an input may be a secret
        problems = [one for details in error.errors(include_url=False) for one in _problems(model, tree, details)]
    conflicts: list[Mapping[str, Any]] = []
    again = {key: value for key, value in context.items() if key != "files"}  # which have been noted
    try:
        settings = model.model_validate(tree.data, context={**again, CONFLICTS: conflicts})
    except ValidationError:
        raise ConfigError(in_order(problems, tree)) from None
    return settings, [*problems, *(_conflict(tree, one) for one in conflicts)]


def in_order(problems: Iterable[Problem], tree: Tree) -> list[Problem]:
    """Return the problems once each, sorted by place, without parents of other problems.

    A list that is too short only because its items are wrong is such a parent. tree: that of the settings; problems of
    other files, which it names, are the last.
    """
    once = dict.fromkeys(problems)
    parents = {problem.path[:length] for problem in once for length in range(1, len(problem.path))}
    leaves = [problem for problem in once if problem.path not in parents]

    def place(problem: Problem) -> tuple[bool, int, str]:
        origin = problem.origin
        return origin.line is not None and origin.source != tree.root.source, origin.line or 0, str(origin)

    return sorted(leaves, key=place)


def _conflict(tree: Tree, context: Mapping[str, Any]) -> Problem:
    path: Path = tuple(context["path"])
    return Problem(tree.origin(path), path, context["message"])


def _problems(model: type[BaseModel], tree: Tree, details: ErrorDetails) -> Iterator[Problem]:
    """Convert one of pydantic's errors; messages quote no value, because it may be a secret."""
    if details["type"] == "conflicts":
        yield from (_conflict(tree, one) for one in details["ctx"]["conflicts"])
        return
    path = _path_in(tree.data, details["loc"], keep_last=details["type"] == "missing")
    yield Problem(tree.origin(path), path, message_of(model, path, details))


def _path_in(data: Any, loc: Path, *, keep_last: bool) -> Path:
    """Return the steps of pydantic's location that are keys of the data.

    Pydantic also names the types of a union there. keep_last: keep the last step even if the data does not have it.
    """
    path: list[str | int] = []
    for position, step in enumerate(loc):
        if isinstance(data, dict) and step in data:
            data = data[str(step)]
        elif isinstance(data, list) and isinstance(step, int) and step < len(data):
            data = data[step]
        elif not (keep_last and position == len(loc) - 1):
            continue
        path.append(step)
    return tuple(path)


_MESSAGES = {
    "missing": "is required",
    "model_type": "must be a mapping",
    "model_attributes_type": "must be a mapping",
    "tuple_type": "must be a list",
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
}


_PATTERNS = {
    NAME: "must be 1 to 64 letters, digits, dots, dashes and underscores, and begin with a letter or digit",
    PATH: "must begin with /, and be ASCII without spaces and #",
}


def message_of(model: type[BaseModel], path: Path, details: ErrorDetails) -> str:
    """Return in nproxy's own words what is wrong at `path` of a `model`; quotes no value."""
    if details["type"] == "extra_forbidden":
        return f"unknown key{suggest_key(path, details['input'], model)}"
    if details["type"] == "literal_error":
        return f"must be {details['ctx']['expected'].replace(chr(39), '')}"
    if details["type"] == "string_pattern_mismatch":
        return _PATTERNS[details["ctx"]["pattern"]]
    return _MESSAGES.get(details["type"]) or details["msg"].replace("Input should be", "must be")
