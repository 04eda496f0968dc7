"""Where the settings come from, and what they were at one moment: at the start, and again when something changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nproxy.config.checking import checked
from nproxy.config.environment import lay_environment
from nproxy.config.files import check_files
from nproxy.config.keys import Key
from nproxy.config.settings import Config
from nproxy.config.tree import ConfigError, Origin, Problem, Tree, read_file
from nproxy.config.watching import Digest, digest


@dataclass(frozen=True, slots=True)
class Reading:
    """What a source said: settings that are good, or problems.

    tree: what the settings were made from, with the place of each part. folder: where relative paths begin. secrets:
    what was found for each reference to a secret. keys: those of the keys file. files: what
    was read of each file that bears on the settings, None for one that was not there.
    """

    source: Source
    config: Config | None
    problems: tuple[Problem, ...]
    tree: Tree = field(repr=False)
    folder: Path
    secrets: Mapping[str, str] = field(repr=False)
    keys: tuple[Key, ...] = field(repr=False)
    files: Mapping[Path, Digest | None] = field(repr=False)

    def checked(self) -> Config:
        """The settings. Raises ConfigError with the problems that there are instead."""
        if self.config is None:
            raise ConfigError([*self.problems])
        return self.config

    @property
    def named_files(self) -> Mapping[Path, Digest | None]:
        """What was read of the files that the settings name: of some of them they hold the names only."""
        return {file: content for file, content in self.files.items() if file != self.source.file}

    def again(self) -> Reading:
        """Another reading of the same source. Blocks."""
        return self.source.read()

    def message(self) -> dict[str, Any]:
        """Good settings as plain data for another process, which then asks neither environment nor files for secrets.

        It holds them, so it is for a pipe between processes and for nothing that stays. The keys go with it: their file
        may be another, or a bad one, when the other process starts.
        """
        return {
            "data": self.tree.data,
            "folder": str(self.folder),
            "secrets": dict(self.secrets),
            "keys": [key.model_dump(mode="json") for key in self.keys],
        }


def from_message(message: Mapping[str, Any]) -> Config:
    """The settings that another process read and checked."""
    tree = Tree(Origin("settings"), message["data"])
    return checked(Config, tree, {"environ": {}, "folder": Path(message["folder"]), "secrets": message["secrets"]})


def keys_from_message(message: Mapping[str, Any]) -> tuple[Key, ...]:
    """The keys of the keys file that another process read and checked."""
    return tuple(map(Key.model_validate, message["keys"]))


@dataclass(frozen=True, slots=True)
class Source:
    """A file, the environment over it, and over that what `adjust` puts into the tree. Environment and options stay."""

    file: Path | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)
    adjust: Callable[[Tree], None] | None = None

    def read(self) -> Reading:
        """Read everything anew. Blocks; raises nothing for what is wrong with the settings."""
        folder = self.file.parent if self.file is not None else Path()
        files: dict[Path, Digest | None] = {} if self.file is None else {self.file: digest(self.file)}
        secrets: dict[str, str] = {}
        tree = Tree(Origin("settings"))
        config, problems = None, []
        keys: tuple[Key, ...] = ()
        try:
            if self.file is not None:
                tree = read_file(self.file)
            lay_environment(tree, self.environ)
            if self.adjust is not None:
                self.adjust(tree)
            context = {"environ": self.environ, "folder": folder, "secrets": secrets, "files": files}
            wanted = checked(Config, tree, context)
            keys = check_files(wanted, tree)
            config = wanted
        except ConfigError as error:
            problems = error.problems
        return Reading(self, config, tuple(problems), tree, folder, secrets, keys, files)


def load(
    file: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    adjust: Callable[[Tree], None] | None = None,
) -> Config:
    """Read the settings once.

    Raises ConfigError with every problem found, each at its line, variable or option; and with those of the files that
    the settings name, once the settings are good.
    """
    return Source(file, environ, adjust).read().checked()
