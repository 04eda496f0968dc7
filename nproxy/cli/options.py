"""The options of `nproxy serve`, laid over the settings from file and environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from nproxy.config import ConfigError, Origin, Problem, Tree

Given = Mapping[str, str | tuple[str, ...] | None]


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options as typed: keys of the settings with their text, the upstreams with their key, and the `n` mode of all
    upstreams.
    """

    keys: tuple[tuple[str, tuple[str, str], str], ...]
    upstreams: tuple[str, ...]
    upstream_key: str | None
    n_mode: str | None

    @classmethod
    def of(cls, given: Given) -> Self:
        """Take click's values; an option that was not given is None.

        Raises ConfigError if an option names a file of a current directory that does not exist.
        """
        places = {
            "model": ("--model", ("engine", "model")),
            "dtype": ("--dtype", ("engine", "dtype")),
            "quantization": ("--quantization", ("engine", "quantization")),
            "host": ("--host", ("listen", "host")),
            "port": ("--port", ("listen", "port")),
            "workers": ("--workers", ("listen", "workers")),
            "max_n": ("--max-n", ("n_policy", "max_n")),
            "api_key": ("--api-key", ("auth", "api_key")),
        }
        keys = [
            (option, path, _from_here(value, option))
            for name, (option, path) in places.items()
            if isinstance(value := given[name], str)
        ]
        n_mode, key = given["n_mode"], given["upstream_key"]
        return cls(
            tuple(keys),
            tuple(given["upstreams"] or ()),
            _from_here(key, "--upstream-key") if isinstance(key, str) else None,
            n_mode if isinstance(n_mode, str) else None,
        )

    def lay_over(self, tree: Tree) -> None:
        """Put the options into the tree: each --upstream is added to the file's, --n applies to every upstream.

        Raises ConfigError for options of an engine that does not run, for --n without an upstream, and for
        --upstream-key without --upstream.
        """
        had_engine = tree.data.get("engine") is not None
        for option, path, value in self.keys:
            tree.put(path, value, Origin(option, names_key=True))
        for url in self.upstreams:
            there = _list(tree.data.get("upstreams"))
            upstream = {"name": _free_name(there), "replicas": [url]}
            tree.put(("upstreams", len(there)), upstream, Origin("--upstream"))
            if self.upstream_key is not None:
                tree.put(("upstreams", len(there), "api_key"), self.upstream_key, Origin("--upstream-key"))
        if self.upstream_key is not None and not self.upstreams:
            why = "is for the servers of --upstream, and there are none"
            raise ConfigError([Problem(Origin("--upstream-key"), (), why)])
        there = _list(tree.data.get("upstreams"))
        if self.n_mode is not None:
            if not tree.data.get("upstreams"):
                why = "is for upstreams, and there are none"
                raise ConfigError([Problem(Origin("--n"), (), why)])
            for position in range(len(there)):
                tree.put(("upstreams", position, "n"), self.n_mode, Origin("--n"))
        if there and not had_engine:
            self._demand_model()

    def _demand_model(self) -> None:
        """Raise ConfigError if only options other than --model would start the engine beside upstreams."""
        options = [option for option, (section, _), _ in self.keys if section == "engine"]
        if options and "--model" not in options:
            why = "is for the built-in engine, which does not run beside upstreams without --model"
            raise ConfigError([Problem(Origin(option), (), why) for option in options])


def _from_here(value: str, option: str) -> str:
    """Let a relative file:PATH start at the current directory; in the settings it starts at their folder."""
    file = value.removeprefix("file:")
    if file in (value, "") or file.startswith("~"):
        return value
    try:
        return f"file:{Path(file).absolute()}"
    except OSError as error:
        raise ConfigError([Problem(Origin(option), (), "the current directory does not exist")]) from error


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _free_name(upstreams: list[object]) -> str:
    """Return `upstream`, with a number from 2 on if that name is taken."""
    taken = {upstream.get("name") for upstream in upstreams if isinstance(upstream, dict)}
    name, number = "upstream", 1
    while name in taken:
        number += 1
        name = f"upstream-{number}"
    return name
