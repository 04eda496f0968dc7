"""The options of `nproxy keys new|hash|list|remove`; the implementation is imported when they run."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from getpass import getpass
from pathlib import Path

import click

from nproxy.cli.typed import FILE
from nproxy.cli.wrong_use import WRONG_USE, WrongUse


@click.group()
def keys() -> None:
    """Create, list and remove API keys.

    They are in the file that auth.api_keys_file names, as hashes.

    \b
    Examples:
      nproxy keys new team-a --file keys.yaml
      nproxy keys hash < key.txt
      nproxy keys list --file keys.yaml
      nproxy keys remove team-a --file keys.yaml
    """


@keys.command("new")
@click.argument("name")
@click.option("--file", metavar="FILE", type=FILE, help="Add the key's hash to this keys file.")
@click.pass_context
def new(context: click.Context, /, name: str, file: Path | None) -> None:
    """Create a key for NAME.

    Prints the key, once, and the entry for the file of keys. With --file the entry is added to that file: if the name
    is already there, it has two keys until the old hash is removed.

    \b
    Examples:
      nproxy keys new team-a
      nproxy keys new team-a --file keys.yaml
    """
    from nproxy.cli.keys.command import add_key, entry_of, new_key

    with _errors_printed(context):
        key = new_key(name)
        if file is None:
            click.echo(key)
            click.echo(entry_of(name, key))
        else:
            click.echo(add_key(name, key, file, click.echo), err=True)


@keys.command("hash")
@click.pass_context
def hash_(context: click.Context, /) -> None:
    """Print the hash of a key that is read from standard input.

    A terminal asks for it, and does not show it.

    \b
    Examples:
      nproxy keys hash < key.txt
      openssl rand -hex 24 | tee key.txt | nproxy keys hash
    """
    from nproxy.cli.keys.command import hash_of

    with _errors_printed(context):
        key = getpass("Key: ") if sys.stdin.isatty() else sys.stdin.readline()
        click.echo(hash_of(key.rstrip("\r\n")))


@keys.command("list")
@click.option("--file", metavar="FILE", type=FILE, required=True, help="The keys file.")
@click.option("--json", "json_form", is_flag=True, help="Print everything that the file says, as JSON.")
@click.pass_context
def list_(context: click.Context, /, file: Path, *, json_form: bool) -> None:
    """List the keys of a file.

    Shows the name of each key, whether it is valid, the beginnings of its hashes, its limits and its models.

    \b
    Examples:
      nproxy keys list --file keys.yaml
      nproxy keys list --file keys.yaml --json | jq -r '.keys[] | select(.state != "valid").name'
    """
    from nproxy.cli.keys.listing import show

    with _errors_printed(context):
        show(file, json_form=json_form)


@keys.command("remove")
@click.argument("name")
@click.option("--file", metavar="FILE", type=FILE, required=True, help="The keys file.")
@click.option(
    "--hash",
    "digest",
    metavar="HASH",
    help="Remove only the key with this hash; its first eight digits are enough.",
)
@click.pass_context
def remove(context: click.Context, /, name: str, file: Path, digest: str | None) -> None:
    """Remove the entry of NAME from a file, or one of its hashes.

    A running gateway refuses the key within two seconds. Requests that it has already accepted are answered.

    \b
    Examples:
      nproxy keys remove team-a --file keys.yaml
      nproxy keys remove team-a --file keys.yaml --hash 6f2c81d0     # the old key of two
    """
    from nproxy.cli.keys.command import remove_key

    with _errors_printed(context):
        click.echo(remove_key(name, file, digest))


@contextlib.contextmanager
def _errors_printed(context: click.Context) -> Iterator[None]:
    """Print wrong use in one line, and exit with the code for it."""
    try:
        yield
    except WrongUse as error:
        click.echo(f"nproxy: {error}", err=True)
        context.exit(WRONG_USE)
