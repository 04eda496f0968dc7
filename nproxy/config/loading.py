"""The source of the settings, and what a reading of it gave: at the start, and again when something changed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nproxy.config.checking import checked, in_order, read_partly
from nproxy.config.environment import lay_environment
from nproxy.config.files import check_files, pair_of
from nproxy.config.keys import Key
from nproxy.config.settings import Config
from nproxy.config.tree import ConfigError, Origin, Problem, Tree, read_file
from nproxy.config.watching import Digest, digest

_EMPTIED = "is empty; it is probably still being written"
_READ_ONCE = "is a pipe, which can be read only once; restart nproxy"


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of one reading: valid settings, or problems."""

    source: Source
    """Where the settings were read from."""
    config: Config | None
    """The settings; None if there are problems."""
    problems: tuple[Problem, ...]
    """All that is wrong with the settings; empty if they are valid."""
    tree: Tree = field(repr=False)
    """The tree that the settings were made from, with the origin of each part."""
    folder: Path
    """The folder that relative paths start from."""
    secrets: Mapping[str, str] = field(repr=False)
    """The value found for each reference to a secret."""
    keys: tuple[Key, ...] = field(repr=False)
    """The keys of the keys file."""
    pair: tuple[bytes, bytes] | None = field(repr=False)
    """The contents of the files of the certificate and its key, if there is one."""
    files: Mapping[Path, Digest | None] = field(repr=False)
    """The digest of each file that influences the settings; None for one that did not exist."""
    empty: bool
    """Whether the file of the settings contains none."""

    def checked(self) -> Config:
        """Return the settings. Raises ConfigError with the problems if there are any."""
        if self.config is None:
            raise ConfigError([*self.problems])
        return self.config

    @property
    def named_files(self) -> Mapping[Path, Digest | None]:
        """The digests of the files that the settings name; of some files the settings hold only the name."""
        return {file: content for file, content in self.files.items() if file != self.source.file}

    def again(self) -> Reading:
        """Read the same source again. Blocks.

        A file that has lost all its settings is refused, because it is probably still being written, and empty settings
        are valid: they would need no key, for example. So is a pipe, which has nothing more.
        """
        return self.source.read(self)

    def message(self) -> dict[str, Any]:
        """Return valid settings as plain data for another process, which then need not look up secrets.

        The data holds the secrets, so use it only for a pipe between processes and never store it. The keys and the
        certificate are included, because their files may have changed, or be invalid, when the other process starts.
        """
        return {
            "data": self.tree.data,
            "folder": str(self.folder),
            "secrets": dict(self.secrets),
            "keys": [key.model_dump(mode="json") for key in self.keys],
            "pair": None if self.pair is None else [part.decode("latin-1") for part in self.pair],
        }


def from_message(message: Mapping[str, Any]) -> Config:
    """Return the settings that another process read and checked."""
    tree = Tree(Origin("settings"), message["data"])
    return checked(Config, tree, {"environ": {}, "folder": Path(message["folder"]), "secrets": message["secrets"]})


def keys_from_message(message: Mapping[str, Any]) -> tuple[Key, ...]:
    """Return the keys of the keys file that another process read and checked."""
    return tuple(map(Key.model_validate, message["keys"]))


@dataclass(frozen=True, slots=True)
class Source:
    """A file, the environment laid over it, and then the changes that `adjust` makes to the tree.

    Environment and options stay the same for all readings.
    """

    file: Path | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)
    adjust: Callable[[Tree], None] | None = None

    def read(self, before: Reading | None = None) -> Reading:
        """Read everything anew. Blocks; does not raise for problems with the settings. before: see Reading.again."""
        folder = self.file.parent if self.file is not None else Path()
        files: dict[Path, Digest | None] = {} if self.file is None else {self.file: digest(self.file)}
        secrets: dict[str, str] = {}
        tree = Tree(Origin("settings"))
        config: Config | None = None
        problems: list[Problem] = []
        keys: tuple[Key, ...] = ()
        pair: tuple[bytes, bytes] | None = None
        empty = False
        try:
            if self.file is not None:
                tree = read_file(self.file) if before is None else _read_again(self.file, before)
                empty = not tree.data
            lay_environment(tree, self.environ)
            if self.adjust is not None:
                self.adjust(tree)
            context = {"environ": self.environ, "folder": folder, "secrets": secrets, "files": files}
            keys, pair, config = _read(tree, context)
        except ConfigError as error:
            problems = error.problems
        return Reading(self, config, tuple(problems), tree, folder, secrets, keys, pair, files, empty)


def _read(tree: Tree, context: Mapping[str, Any]) -> tuple[tuple[Key, ...], tuple[bytes, bytes] | None, Config]:
    """Read settings and the files that they name: keys and certificate. Raises ConfigError with all problems."""
    config, problems = read_partly(Config, tree, context)
    keys: tuple[Key, ...] = ()
    try:
        keys = check_files(config, tree)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(in_order(problems, tree))
    return keys, pair_of(config), config


def _read_again(file: Path, before: Reading) -> Tree:
    """Read a file of settings into a tree. Raises ConfigError, as `read_file` does, and for what `again` refuses."""
    if file.is_fifo():
        raise ConfigError([Problem(Origin(str(file)), (), _READ_ONCE)])
    tree = read_file(file)
    if not tree.data and not before.empty:
        raise ConfigError([Problem(tree.root, (), _EMPTIED)])
    return tree


def load(
    file: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    adjust: Callable[[Tree], None] | None = None,
) -> Config:
    """Read the settings once.

    Raises ConfigError with every problem found, each at its line, variable or option.
    """
    return Source(file, environ, adjust).read().checked()
