"""docs/reference/cli.md: every command with its arguments and options, from click's objects."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from docs.generate.markdown import code, table
from nproxy.cli.commands import main

_INTRODUCTION = """\
# Commands

Generated from the commands (`make docs`); `nproxy COMMAND --help` (or `-h`) shows the same.

Exit codes: 0 success; 1 failure; 2 wrong usage, or invalid settings; 130 stopped by Ctrl-C (`serve`, once it
serves, ends with 0); 143 `bench` stopped by SIGTERM. Results are written to standard output; errors, logs and progress
to standard error.
"""


def page() -> str:
    """Return the text of docs/reference/cli.md."""
    return "\n".join([_INTRODUCTION, *_commands(main, click.Context(main, info_name="nproxy"))])


def _commands(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield a command, and then its subcommands."""
    yield f"## {context.command_path}\n"
    yield f"```text\n{' '.join([context.command_path, *command.collect_usage_pieces(context)])}\n```\n"
    yield _told(command.help or "")
    options = [
        _option(option, context) for option in command.params if isinstance(option, click.Option) and not option.hidden
    ]
    if options:
        yield table(["option", "default", "what it does"], options)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.commands[name]
            if not below.hidden:
                yield from _commands(below, click.Context(below, info_name=name, parent=context))


def _option(option: click.Option, context: click.Context) -> tuple[str, str, str]:
    names = ", ".join(code(name) for name in (*option.opts, *option.secondary_opts))
    value = "" if option.is_flag or option.count else f" {code(option.make_metavar(context))}"
    default, words = "", option.help or ""
    if found := re.search(r"\s*\[default: (.*)\]$", words):
        default, words = found[1], words[: found.start()]
    elif option.show_default:
        default = str(option.default)
    return names + value, default and code(default), words


def _told(help: str) -> str:
    """Return a command's help as paragraphs; what click must not wrap becomes a block (tests/cli runs the examples)."""
    paragraphs = []
    for paragraph in inspect.cleandoc(help).split("\n\n"):
        kept = paragraph.removeprefix("\b\n")
        paragraphs.append(" ".join(paragraph.split()) if kept == paragraph else f"```text\n{kept}\n```")
    return "\n\n".join(paragraphs) + "\n"
