"""The examples on the help pages of all commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import click

from nproxy.cli import main

_BLOCK = re.compile(r"(?m)^Examples:\n((?: +\S.*\n?)+)")


@dataclass(frozen=True, slots=True)
class Example:
    """A line as it is to be typed, and the command on whose page it stands."""

    of: str
    line: str

    def calls(self) -> Iterator[list[str]]:
        """The words of each call of nproxy in it, without `nproxy`; a shell's own words end a call."""
        yield from (words for name, *words in simple_commands(self.line) if name == "nproxy")


def simple_commands(line: str) -> Iterator[list[str]]:
    """The words of each command in a line; a shell's own words end one, and variables before it are left out."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, "#"
    for ends, words in groupby(lexer, lambda word: set(word) <= set("|&;<>()")):
        typed = [*words]
        while typed and re.match(r"[A-Z_]+=", typed[0]):
            typed.pop(0)
        if not ends and typed:
            yield typed


def commands(command: click.Command = main, path: str = "nproxy") -> Iterator[tuple[str, click.Command]]:
    """Every command with the words that call it."""
    yield path, command
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from commands(below, f"{path} {name}")


def examples() -> list[Example]:
    """All lines of all pages."""
    return [Example(path, line) for path, command in commands() for line in lines(command)]


def lines(command: click.Command) -> list[str]:
    """The examples of one command, as its help page shows them."""
    shown = command.get_help(click.Context(command, info_name="nproxy", terminal_width=200))
    found = _BLOCK.search("\n".join(line.removeprefix("  ") for line in shown.splitlines()))
    return [] if found is None else [line.strip() for line in found[1].splitlines()]


def parse(words: list[str]) -> None:
    """Have a call parsed as far as that goes without doing anything. Raises click.UsageError for a wrong one."""
    command: click.Command = main
    context: click.Context | None = None
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        context = click.Context(command, info_name=command.name, parent=context)
        name, *words = words
        below = command.get_command(context, name)
        if below is None:
            raise click.UsageError(f"no command {name}")
        command = below
    command.make_context(command.name, words, parent=context)
