"""Lists, fetches and removes models."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from nproxy.cli.wrong_use import WrongUse
from nproxy.models import DEFAULT, Kept, ModelError, kept, resolve

VERSION = 1
"""Increased when a key of the JSON is renamed or removed."""


def show(*, json_form: bool) -> None:
    """Print the models on this machine: a table on a terminal, lines of three columns in a pipe, or JSON."""
    found = kept()
    if json_form:
        click.echo(json.dumps({"version": VERSION, "default": DEFAULT.id, "models": [*map(_entry, found)]}))
        return
    if DEFAULT.id not in [model.name for model in found]:
        click.echo(
            f"{DEFAULT.id}, the default, is not on this machine yet; fetch it with: nproxy models pull", err=True
        )
    if not sys.stdout.isatty():
        for model in found:
            click.echo(f"{model.name}\t{model.size}\t{model.path}")
    elif found:
        Console(highlight=False).print(_table(found))


def pull(name: str | None) -> None:
    """Fetch a model if it is not on this machine yet. Raises WrongUse for a local path, and ModelError."""
    wanted = DEFAULT.id if name is None else name
    if _is_path(wanted):
        raise WrongUse(f"{wanted} is a path on this machine; serve it with: nproxy serve --model {wanted}")
    click.echo(resolve(wanted).path)


def _is_path(name: str) -> bool:
    """Whether a file or folder has this name; not if one cannot look, of which `resolve` says why."""
    try:
        return bool(name) and Path(name).expanduser().exists()
    except (OSError, RuntimeError):
        return False


def remove(names: Sequence[str], *, yes: bool) -> None:
    """Remove models.

    Raises WrongUse, before anything is removed, for one that does not exist, and if the user cannot be asked. Raises
    ModelError if one cannot be removed.
    """
    here = {model.name: model for model in kept()}
    if missing := [name for name in names if name not in here]:
        raise WrongUse(f"no model on this machine is named {missing[0]}; see: nproxy models list")
    going = [here[name] for name in dict.fromkeys(names)]
    if not yes:
        if not sys.stdin.isatty():
            raise WrongUse("there is no terminal to ask for confirmation; use --yes to remove without confirmation")
        for model in going:
            click.echo(f"{model.name}, {decimal(model.size)}, in {model.path}", err=True)
        if not click.confirm(f"Remove {'it' if len(going) == 1 else 'them'}?", err=True):
            return
    for model in going:
        try:
            model.remove()
        except OSError as error:
            raise ModelError(f"model {model.name}: cannot be removed: {error.strerror or error}") from error
        click.echo(f"removed {model.name}, {decimal(model.size)}")


def _table(found: Sequence[Kept]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("")
    table.add_column("model", overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("where", overflow="fold", style="dim")
    for model in found:
        star = "*" if model.name == DEFAULT.id else ""
        table.add_row(star, Text(model.name, "bold"), decimal(model.size), Text(str(model.path)))
    return table


def _entry(model: Kept) -> dict[str, object]:
    return {
        "name": model.name,
        "bytes": model.size,
        "path": str(model.path),
        "cache": model.origin,
        "default": model.name == DEFAULT.id,
    }
