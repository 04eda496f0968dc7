"""Which settings cannot change while they are served."""

from __future__ import annotations

from nproxy.config.engine import Engine
from nproxy.config.settings import Config
from nproxy.config.tree import Path, Problem, Tree

THERE_OR_NOT: tuple[Path, ...] = (("engine",), ("admin",), ("listen", "tls"))
"""Sections that cannot be added or removed."""

BOUND: tuple[Path, ...] = (
    ("listen", "host"),
    ("listen", "port"),
    ("listen", "workers"),
    ("listen", "huge_pages"),
    ("admin", "host"),
    ("admin", "port"),
    ("telemetry", "gen_ai_metrics"),
    ("telemetry", "otlp_endpoint"),
    ("telemetry", "otlp_headers"),
)
"""Keys from which sockets, processes, threads and memory were made."""


def needs_restart(served: Config, wanted: Config, tree: Tree) -> list[Problem]:
    """Return a problem for each key that differs and is only read when serving starts.

    tree: the tree that gave `wanted`; each problem has its place there.
    """
    return [Problem(tree.origin(path), path, "cannot change without a restart") for path in _differing(served, wanted)]


def _differing(served: Config, wanted: Config) -> list[Path]:
    paths = [path for path in THERE_OR_NOT if (_at(served, path) is None) != (_at(wanted, path) is None)]
    if served.engine is not None and wanted.engine is not None:
        paths += [
            ("engine", key) for key in Engine.model_fields if getattr(served.engine, key) != getattr(wanted.engine, key)
        ]
    return paths + [path for path in BOUND if path[:1] not in paths and _at(served, path) != _at(wanted, path)]


def _at(config: Config, path: Path) -> object:
    """Return the value of a key; None below a section that does not exist."""
    value: object = config
    for step in path:
        value = getattr(value, str(step), None)
    return value
