"""Settings before they are checked: plain data with the place where each part was written.

A tree starts from a YAML file; the environment and the command line are laid over it. Every part keeps its origin, so
that an error can point at the line, the variable or the option that caused it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

import yaml

from nproxy.config.contents import contents

Path = tuple[str | int, ...]

_NEEDS_QUOTES = {"${": "${NAME}", "://[": "http://[::1]:8000/v1"}
"""The beginnings of values that YAML does not understand in `[a, b]` and `{key: a}`, up to its error, and examples."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a part of the settings was written: a file's line (from 1), a variable or an option.

    names_key: the source itself already says which key it is, as the option --port does.
    """

    source: str
    line: int | None = None
    names_key: bool = False

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with the settings: its origin, its key and what is wrong."""

    origin: Origin
    path: Path = field(repr=False)  # a key may hold a value: see show_path
    message: str

    def __str__(self) -> str:
        path = "" if self.origin.names_key else show_path(self.path)
        return ": ".join(part for part in (str(self.origin), path, self.message) if part)


class ConfigError(Exception):
    """The settings are not usable; `problems` holds every problem found, in the order of writing."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


def show_path(path: Path) -> str:
    """Return a key's path as in `upstreams[0].timeouts.idle`; a key that holds a colon is cut there.

    `{api_key:secret}`, without a space after the colon, is a key in YAML, and what follows the colon may be a secret.
    """
    return "".join(f"[{part}]" if isinstance(part, int) else f".{_before_colon(part)}" for part in path).removeprefix(
        "."
    )


def _before_colon(key: str) -> str:
    name, colon, _ = key.partition(":")
    return f"{name}:..." if colon else name


@dataclass(slots=True)
class Tree:
    """Nested dicts, lists and scalars, with the origin of every part by its path.

    root: the origin of parts for which none is known. The tree is mutated by `put` until it is validated.
    """

    root: Origin
    data: dict[str, Any] = field(default_factory=dict)
    origins: dict[Path, Origin] = field(default_factory=dict)

    def origin(self, path: Path) -> Origin:
        """Return the origin of a part, or of the nearest part around it."""
        for length in range(len(path), 0, -1):
            if found := self.origins.get(path[:length]):
                return found
        return self.root

    def put(self, path: Path, value: Any, origin: Origin) -> None:
        """Set one part and create the containers around it; an index may be one past a list's end.

        Raises ConfigError if an index leaves a gap.
        """
        self.data = self._with(self.data, (), path, value, origin)
        for stale in [known for known in self.origins if known[: len(path)] == path]:
            del self.origins[stale]
        self.origins[path] = origin

    def _with(self, here: Any, walked: Path, rest: Path, value: Any, origin: Origin) -> Any:
        """Return a copy of `here` in which `rest` holds `value`; containers on the way are created or replaced."""
        if not rest:
            return value
        step, *after = rest
        if here is None and walked:
            self.origins.setdefault(walked, origin)
        if isinstance(step, int):
            items = list(here) if isinstance(here, list) else []
            if step > len(items):
                problem = f"entry {step} does not exist: the list has {len(items)} entries"
                raise ConfigError([Problem(origin, (*walked, step), problem)])
            old = items[step] if step < len(items) else None
            items[step : step + 1] = [self._with(old, (*walked, step), tuple(after), value, origin)]
            return items
        if isinstance(here, list):
            raise ConfigError([Problem(origin, (*walked, step), "this is a list: its entries are numbered from 0")])
        mapping = dict(here) if isinstance(here, dict) else {}
        mapping[step] = self._with(mapping.get(step), (*walked, step), tuple(after), value, origin)
        return mapping


MOST_PARTS = 100_000
"""Maximum number of parts of one file. What an alias stands for counts at every place where the alias is used: a few
aliases of aliases can make millions of parts."""


class _Loader(yaml.SafeLoader):
    """Resolves plain scalars as YAML 1.2's core schema does, so that `off` is a word and `010` is ten."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 - the base class has it so


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)


SECTIONS = "sections such as listen and upstreams"


def read_file(file: FilePath, parts: str = SECTIONS) -> Tree:
    """Read a YAML file into a tree; `parts` is what it has at the top, in errors.

    Raises ConfigError if it cannot be read or is not YAML.
    """
    source = str(file)
    try:
        text = contents(file).decode("utf-8-sig")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError([Problem(Origin(source), (), f"cannot be read: {reason}")]) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError([Problem(Origin(source, line), (), "is not valid UTF-8")]) from error
    return read_yaml(text, source, parts)


def read_yaml(text: str, source: str, parts: str = SECTIONS) -> Tree:
    """Parse a YAML file into a tree; `source` is its name in errors, and `parts` what it has at the top.

    Raises ConfigError for text that is not YAML, more than one document, a key that occurs twice, a tag other than
    plain ones, no mapping at the top, or more than MOST_PARTS.
    """
    tree = Tree(Origin(source, 1))
    problems: list[Problem] = []
    try:
        node = yaml.compose(text, Loader=_Loader)
        if node is not None:
            _count(node, source, {})
        data = None if node is None else _build(node, (), tree.origins, source, problems)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        origin = Origin(source, mark.line + 1 if mark else 1)
        problem = f"not valid YAML: {error.problem or error.context}"
        if mark:
            problem += _quotes_for(text[: mark.index + 1])
        raise ConfigError([Problem(origin, (), problem)]) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError([Problem(Origin(source, line), (), f"not valid YAML: {error.reason}")]) from error
    except RecursionError as error:
        raise ConfigError([Problem(tree.root, (), "nested too deeply")]) from error
    if data is not None and not isinstance(data, dict):
        problems.append(Problem(tree.root, (), f"must be a mapping of {parts}"))
    if problems:
        raise ConfigError(problems)
    tree.data = data or {}
    return tree


def _quotes_for(read: str) -> str:
    """Return a hint for a value that is not quoted inside braces or brackets; `read`: the text up to the error."""
    example = next((example for begin, example in _NEEDS_QUOTES.items() if read.endswith(begin)), None)
    return "" if example is None else f'; inside braces or brackets, write "{example}" with its quotes'


def _count(node: yaml.Node, source: str, known: dict[int, int]) -> int:
    """Return how many parts a node becomes, through aliases too; each node is counted only once.

    known: the counts so far, by the nodes' ids. Raises ConfigError at the first node that becomes too many parts.
    """
    if (parts := known.get(id(node))) is not None:
        return parts
    inside: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        inside = [value for _, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        inside = node.value
    parts = 1 + sum(_count(part, source, known) for part in inside)
    if parts > MOST_PARTS:
        problem = f"expands to more than {MOST_PARTS} values (aliases included)"
        raise ConfigError([Problem(Origin(source, node.start_mark.line + 1), (), problem)])
    known[id(node)] = parts
    return parts


def _build(node: yaml.Node, path: Path, origins: dict[Path, Origin], source: str, problems: list[Problem]) -> Any:
    """Convert a composed node to plain data; notes the line of each part and what is wrong with it."""
    origin = origins.setdefault(path, Origin(source, node.start_mark.line + 1)) if path else Origin(source, 1)
    if isinstance(node, yaml.MappingNode):
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            here = Origin(source, key_node.start_mark.line + 1)
            if not isinstance(key_node, yaml.ScalarNode):
                problems.append(Problem(here, path, "a key must be plain text"))
                continue
            key = str(key_node.value)
            if key in mapping:
                first = origins[(*path, key)].line
                problems.append(Problem(here, (*path, key), f"occurs twice; first on line {first}"))
                continue
            origins[(*path, key)] = here
            mapping[key] = _build(value_node, (*path, key), origins, source, problems)
        return mapping
    if isinstance(node, yaml.SequenceNode):
        return [_build(item, (*path, index), origins, source, problems) for index, item in enumerate(node.value)]
    return _scalar(node, origin, path, problems)


def _scalar(node: yaml.Node, origin: Origin, path: Path, problems: list[Problem]) -> Any:
    text = str(node.value)
    match node.tag.removeprefix("tag:yaml.org,2002:"):
        case "null":
            return None
        case "bool":
            return text.lower() == "true"
        case "int" if len(text) < 20:
            return int(text)
        case "float" | "int":
            return float(text)
        case "str":
            return text
        case _:
            problems.append(Problem(origin, path, f"the tag {node.tag} is not supported"))
            return None
