"""Read the settings from file, environment and options, and check them, with every error at its place."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from nproxy.config.hints import PREFIX, suggest_key, suggest_variable
from nproxy.config.planned import is_planned_key, is_planned_value
from nproxy.config.settings import Config
from nproxy.config.tree import ConfigError, Origin, Path, Problem, Tree, read_yaml

OTHER_VARIABLES = frozenset({"NPROXY_CACHE"})
"""Variables with the prefix that are not settings: they are read where they are used."""

# Kubernetes tells every container of a namespace about its services: one named nproxy, or nproxy-canary, must not stop
# nproxy. The values are looked at too: NPROXY_LISTEN_PORT=8001 is no service but a setting with a wrong name.
_URL = r"(tcp|udp|sctp)://\S+"
_SERVICE_VARIABLE = re.compile(
    rf"""(?!\w*__)NPROXY_(\w+_)?(
        SERVICE_HOST=\S+
        | SERVICE_PORT(_\w+)?=\d+
        | PORT={_URL}
        | PORT_\d+_(TCP|UDP|SCTP)(={_URL} | _PROTO=(tcp|udp|sctp) | _PORT=\d+ | _ADDR=\S+)
    )""",
    re.VERBOSE,
)


def load(
    file: FilePath | None = None,
    environ: Mapping[str, str] = os.environ,
    adjust: Callable[[Tree], None] | None = None,
) -> Config:
    """Read the settings: the file, over it the environment, over that what `adjust` puts into the tree.

    Raises ConfigError with every problem found, each at its line, variable or option.
    """
    tree = read_file(file) if file is not None else Tree(Origin("settings"))
    lay_environment(tree, environ)
    if adjust is not None:
        adjust(tree)
    context = {"environ": environ, "folder": file.parent if file is not None else FilePath()}
    try:
        return Config.model_validate(tree.data, context=context)
    except ValidationError as error:
        problems = {_problem(tree, details): None for details in error.errors(include_url=False)}
        # the cause holds the inputs, and an input may be a secret
        raise ConfigError(_in_order(problems)) from None


def _in_order(problems: Collection[Problem]) -> list[Problem]:
    """Problems by their place; a list that is too short only because its items are wrong is not told."""
    parents = {problem.path[:length] for problem in problems for length in range(1, len(problem.path))}
    told = [problem for problem in problems if problem.path not in parents]
    return sorted(told, key=lambda problem: (problem.origin.line or 0, str(problem.origin)))


def read_file(file: FilePath) -> Tree:
    """Read a YAML file into a tree; raises ConfigError where it cannot be read or is not YAML."""
    source = str(file)
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError([Problem(Origin(source), (), f"cannot be read: {reason}")]) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError([Problem(Origin(source, line), (), "is not UTF-8")]) from error
    return read_yaml(text, source)


def lay_environment(tree: Tree, environ: Mapping[str, str]) -> None:
    """Lay `NPROXY_LISTEN__PORT=9000` and the like over a tree; two underscores go one level down.

    Items of lists are numbered from 0. A value that begins with `[` or `{` is YAML, `null` is null,
    anything else is text that the key's type reads. Raises ConfigError at unknown variables.
    """
    problems: list[Problem] = []
    for name in sorted((name for name in environ if name.startswith(PREFIX)), key=_natural):
        if name in OTHER_VARIABLES or _SERVICE_VARIABLE.fullmatch(f"{name}={environ[name]}"):
            continue
        path = tuple(int(part) if part.isdigit() else part.lower() for part in name.removeprefix(PREFIX).split("__"))
        origin = Origin(name)
        if path[0] not in Config.model_fields and not is_planned_key(path[:1]):
            problems.append(Problem(origin, (), f"names no setting{suggest_variable(name)}"))
            continue
        try:
            tree.put(path, _read_variable(environ[name], origin), origin)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)


def _read_variable(text: str, origin: Origin) -> Any:
    if text.lstrip()[:1] in ("[", "{"):
        try:
            return read_yaml(f"value: {text}", origin.source).data["value"]
        except ConfigError as error:
            raise ConfigError(
                [Problem(origin, problem.path[1:], problem.message) for problem in error.problems]
            ) from None
    return None if text in ("null", "~", "") else text


def _natural(name: str) -> list[tuple[int, str]]:
    """A sort key in which entry 10 of a list comes after entry 9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _problem(tree: Tree, details: ErrorDetails) -> Problem:
    """Turn one of pydantic's errors into ours; names no value, for it may be a secret."""
    context = details.get("ctx", {})
    if details["type"] == "conflict":
        path: Path = tuple(context["path"])
        return Problem(tree.origin(path), path, details["msg"])
    path = _path_in(tree.data, details["loc"], keep_last=details["type"] == "missing")
    return Problem(tree.origin(path), path, _message(path, details))


def _path_in(data: Any, loc: Path, *, keep_last: bool) -> Path:
    """Keep those steps of pydantic's location that are keys of the data: it also names the types of a union."""
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
    "string_pattern_mismatch": "must be 1 to 64 letters, digits, dots, dashes and underscores, a letter or digit first",
}


def _message(path: Path, details: ErrorDetails) -> str:
    if details["type"] == "extra_forbidden":
        if is_planned_key(path):
            return "is not available yet"
        return f"unknown key{suggest_key(path, details['input'])}"
    if details["type"] == "literal_error":
        if is_planned_value(path, details["input"]):
            return f"{details['input']} is not available yet"
        return f"must be {details['ctx']['expected'].replace(chr(39), '')}"
    return _MESSAGES.get(details["type"]) or details["msg"].replace("Input should be", "must be")
