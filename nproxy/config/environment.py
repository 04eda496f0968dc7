"""Settings from environment variables, such as `NPROXY_LISTEN__PORT=9000`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from nproxy.config.hints import PREFIX, suggest_variable, what_null_ends
from nproxy.config.settings import Config
from nproxy.config.tree import ConfigError, Origin, Problem, Tree, read_yaml

OTHER_VARIABLES = frozenset({"NPROXY_CACHE"})
"""Variables with the prefix that are not settings: they are read where they are used."""

MAPS = frozenset({"models", "adapters", "otlp_headers"})
"""Settings that are maps, whose keys are the user's own words."""

# Kubernetes tells every container of a namespace about its services: one named nproxy, or nproxy-canary, must not stop
# nproxy. The values are checked too: NPROXY_LISTEN_PORT=8001 is not a service but a setting with a wrong name.
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


def lay_environment(tree: Tree, environ: Mapping[str, str]) -> None:
    """Put the settings of variables such as `NPROXY_LISTEN__PORT=9000` into a tree; two underscores go one level down.

    Items of lists are numbered from 0. Keys that are the user's own words keep their case. A value that begins with `[`
    or `{` is YAML; `null`, `~` and the empty string are null; anything else is text that the key's type parses. Raises
    ConfigError for unknown variables, and for the empty string where null would switch off a whole section or remove a
    secret: a variable is often empty by mistake.
    """
    problems: list[Problem] = []
    for name in sorted((name for name in environ if name.startswith(PREFIX)), key=_natural):
        if name in OTHER_VARIABLES or _SERVICE_VARIABLE.fullmatch(f"{name}={environ[name]}"):
            continue
        path = _path(name.removeprefix(PREFIX).split("__"))
        origin = Origin(name)
        if path[0] not in Config.model_fields:
            problems.append(Problem(origin, (), f"unknown setting{suggest_variable(name)}"))
            continue
        if not environ[name] and (ends := what_null_ends(path)):
            problems.append(Problem(origin, path, f"is empty; {ends}"))
            continue
        try:
            tree.put(path, _read_variable(environ[name], origin), origin)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)


def _path(parts: list[str]) -> tuple[str | int, ...]:
    path: list[str | int] = []
    for part in parts:
        if _is_number(part):
            path.append(int(part))
        else:
            path.append(part if path and path[-1] in MAPS else part.lower())
    return tuple(path)


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
    """Return a sort key that puts entry 10 of a list after entry 9."""
    return [(int(part), "") if _is_number(part) else (-1, part) for part in re.split(r"(\d+)", name)]


def _is_number(part: str) -> bool:
    return part.isascii() and part.isdigit()
