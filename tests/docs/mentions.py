"""What pages and code mention in backticks, such as commands, settings and files, and what is wrong with it.

play.py runs the blocks. A mention in a sentence is not run; it is checked against what exists: commands and their
options, targets of make, modules, extras, keys of the settings and their values.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import jsonschema
import yaml

from nproxy.cli import main
from nproxy.config.schema import schema
from tests.cli.examples import simple_commands
from tests.real.processes import ROOT

_CODE = re.compile(r"(?<!`)(?P<ticks>`{1,2})(?!`)(?P<text>[^`\n]+)(?P=ticks)(?!`)")
_MODULE = re.compile(r"\bpython3? -m [\w.]*\w")
_CHOICES = re.compile(r"(?m)^[ -]*([a-z_]+): .* # (.* \| .*)$")
_NOT_HERE = ("llama_cpp.server", "sglang.launch_server")
"""Other projects' modules that no test here installs."""
_ENVIRONMENT = re.compile(r"NPROXY_([A-Z_]+__[A-Z0-9_]+)(?:=.*)?")
_PLACE = re.compile(r"__(?:\d+|N)(?=__)")
_DOTTED = re.compile(r"[a-z_]+(\.(?!(py|js)\b)[a-z_]+)+")
_PAIR = re.compile(r"([a-z_]+): (.+)")

_SHAPES = re.compile(r"(?!n:)\w+: (\{\w+(, \w+)+\}|[a-z])|n: \d+")
"""Text that is no setting, such as `{host, port}`, which only shows a shape, and a request's `n: 8`."""


def mentions(text: str) -> Iterator[str]:
    """Yield what a text has in backticks outside of blocks, and the modules to run anywhere in it; each once."""
    found = [one["text"].strip() for one in _CODE.finditer(text)]
    yield from dict.fromkeys([*found, *_MODULE.findall(text)])


def alternatives(settings: str) -> Iterator[str]:
    """Yield the alternatives that comments list for keys, as `key: value`: from `n: auto  # auto | native`."""
    for key, comment in _CHOICES.findall(settings):
        first, *more = [re.sub(r" \(.*", "", part).strip() for part in comment.split(" | ")]
        yield from (f"{key}: {value}" for value in (first.rpartition(": ")[2], *more))


def wrong_command(said: str, beside: Path = ROOT) -> str | None:
    """Return what is wrong with a command; None for a correct one, and for one that is not ours.

    beside: a folder whose programs may be named without a path.
    """
    typed = re.sub(r"\.venv/bin/(?=\w)", "", said)
    if typed.split()[0] not in _COMMANDS:
        return None
    for name, *words in simple_commands(typed):
        program = beside / words[0] if words and name.startswith("python") else beside
        if name in _COMMANDS and not program.is_file() and (found := _COMMANDS[name](words)) is not None:
            return found
    return None


def wrong_setting(said: str) -> str | None:
    """Return what is wrong with `section.key`, `key: value` or `NPROXY_SECTION__KEY`; None if right or no setting."""
    if (named := _ENVIRONMENT.fullmatch(said)) is not None:
        path = _PLACE.sub("", named[1], count=1).lower().split("__")
        return None if _key(path) is not None else f"no setting {'.'.join(path)}"
    if _DOTTED.fullmatch(said):
        path = said.split(".")
        is_section = _key(path[:1]) is not None and "properties" in _resolved(_key(path[:1]))
        return f"no setting {said}" if is_section and _key(path) is None else None
    if (pair := _PAIR.fullmatch(said)) is None or _SHAPES.fullmatch(said):
        return None
    key, values = pair.groups()
    taken = [found for section in _sections() if (found := section.get("properties", {}).get(key))]
    if not taken:  # a field of a request, or another program's key: only a name close to a setting's is a misspelling
        names = {name for section in _sections() for name in section.get("properties", {})}
        near = difflib.get_close_matches(key, names, n=1, cutoff=0.85)
        return f"no setting is called {key}, but {near[0]} is" if near else None
    refused = [value for value in values.split(" | ") if not any(_takes(one, value) for one in taken)]
    return f"{key} does not take {', '.join(refused)}" if refused else None


def _nproxy(words: list[str]) -> str | None:
    command: click.Command = main
    while isinstance(command, click.Group) and words and re.match("[a-z]", words[0]):
        name, *words = words
        if name not in command.commands:
            return f"no command {name}"
        command = command.commands[name]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    strange = {word.partition("=")[0] for word in words if re.match("--?[a-z]", word)} - known - {"--help"}
    return f"{command.name} has no {', '.join(sorted(strange))}" if strange else None


def _make(words: list[str]) -> str | None:
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    strange = {word for word in words if "=" not in word and word.islower()} - targets
    return f"make has no {', '.join(sorted(strange))}" if strange else None


def _python(words: list[str]) -> str | None:
    if words[:1] == ["-m"]:
        path = ROOT.joinpath(*words[1].split("."))
        if not (ROOT / words[1].partition(".")[0]).exists():  # another project's module
            return None if words[1] in _NOT_HERE or find_spec(words[1]) is not None else f"no program {words[1]}"
        sources = [path.with_suffix(".py")] if path.with_suffix(".py").exists() else sorted(path.glob("**/*.py"))
        words = words[1:]
    else:
        sources = [path for path in (ROOT / words[0],) if path.exists()]
    if not sources:
        return f"no program {words[0]}"
    text = "".join(source.read_text() for source in sources).replace("_", "-")
    strange = [word for word in words[1:] if word.startswith("--") and not re.search(rf"\b{word[2:]}\b", text)]
    return f"{words[0]} has no {', '.join(strange)}" if strange else None


def wrong_pip(words: list[str]) -> str | None:
    """Return what is wrong with arguments of pip: an unknown extra, or a package that is not pinned for the tests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pinned = "\n".join(path.read_text() for path in (ROOT / "requirements").glob("*.txt")).replace("_", "-")
    for word in words[1:] if words[:1] == ["install"] else []:
        own = re.fullmatch(r"(?:\.|nproxy)(?:\[(.+)\])?", word)
        extras = {*own[1].split(",")} if own is not None and own[1] else set()
        if missing := extras - {*project["project"]["optional-dependencies"]}:
            return f"no extra {', '.join(sorted(missing))}"
        if (
            own is None
            and not word.startswith("-")
            and not re.search(rf"(?mi)^{re.escape(word.partition('[')[0])}==", pinned)
        ):
            return f"{word} is in no requirements"
    return None


_COMMANDS = {"nproxy": _nproxy, "make": _make, "python": _python, "python3": _python, "pip": wrong_pip}


@cache
def _schema() -> dict[str, Any]:
    return schema()


def _sections() -> Iterator[dict[str, Any]]:
    yield _schema()
    yield from _schema()["$defs"].values()


def _resolved(one: dict[str, Any] | None) -> dict[str, Any]:
    """Return a section's schema, even if the section may be null or is in a list."""
    told = one or {}
    for choice in (told, *told.get("anyOf", ()), *told.get("oneOf", ()), told.get("items", {})):
        if "$ref" in choice:
            found: dict[str, Any] = _schema()["$defs"][choice["$ref"].rpartition("/")[2]]
            return found
    return told


def _key(path: list[str]) -> dict[str, Any] | None:
    """Return the schema of a key, by its path from the top or in an upstream; None if there is none."""
    for top in (_schema(), _resolved(_schema()["properties"]["upstreams"])):
        found: dict[str, Any] | None = top
        for name in path:
            found = _resolved(found).get("properties", {}).get(name)
        if found is not None:
            return found
    return None


def _takes(one: dict[str, Any], value: str) -> bool:
    checked = jsonschema.Draft202012Validator({**one, "$defs": _schema()["$defs"]})
    return any(checked.is_valid(read) for read in (yaml.safe_load(value), value))
