"""Lists the keys of a file: a table on a terminal, lines in a pipe, or JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nproxy.cli.keys.state import state_of
from nproxy.cli.keys.storing import read
from nproxy.config import Key

VERSION = 1
"""Increased when a key of the JSON is renamed or removed."""
DIGITS = 8
"""Digits of a hash that are shown."""
_LIMITS = ("weight", "choices", "requests_per_minute", "choices_per_minute", "tokens_per_minute")


def show(file: Path, *, json_form: bool) -> None:
    """Print the keys of a file. Raises WrongUse if it is not valid or not readable."""
    keys = read(file)
    if json_form:
        entries = [{**key.model_dump(mode="json"), "state": state_of(key)} for key in keys]
        click.echo(json.dumps({"version": VERSION, "keys": entries}))
    elif sys.stdout.isatty():
        Console(highlight=False).print(table(keys))
    else:
        for key in keys:
            click.echo("\t".join(_columns(key)))


def _columns(key: Key) -> tuple[str, str, str, str, str]:
    """Return name, state, hashes, limits and models as text."""
    state = state_of(key)
    if key.expires is not None and state == "valid":
        state = f"valid until {key.expires:%Y-%m-%d %H:%M %Z}"
    hashes = " ".join(digest.hex()[:DIGITS] for digest in key.hash)
    limits = key.model_dump(include={*_LIMITS}, exclude_defaults=True)
    given = " ".join(f"{name}={value if isinstance(value, int) else f'{value:g}'}" for name, value in limits.items())
    return key.name, state, hashes, given, "all" if key.models is None else " ".join(key.models)


def table(keys: tuple[Key, ...]) -> Table:
    """Return the keys as a table whose hashes are never folded, so that they can be copied."""
    shown = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("name", "state", "hashes", "limits", "models"):
        shown.add_column(heading, overflow="fold", min_width=DIGITS if heading == "hashes" else None)
    for key in keys:
        name, state, *rest = _columns(key)
        shown.add_row(Text(name, "bold"), Text(state, "" if state.startswith("valid") else "yellow"), *map(Text, rest))
    return shown
