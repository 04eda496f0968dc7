"""The commands: create a key, compute the hash of an existing one, and remove one."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from nproxy.cli.keys import storing
from nproxy.cli.keys.state import state_of
from nproxy.cli.keys.writing import with_hash, without_entry, without_hash
from nproxy.cli.wrong_use import WrongUse
from nproxy.config import Key, digest_of

RANDOM_BYTES = 32
SHORTEST = 20
"""Minimum length of a key that was made elsewhere. A plain hash protects what is random, not what can be guessed."""
_BEGIN_OF_HASH = re.compile(r"(?:sha256:)?([0-9a-f]{8,64})", re.IGNORECASE)


def new_key(name: str) -> str:
    """Create a key for `name`. Raises WrongUse for an invalid name."""
    key = f"sk-nproxy-{secrets.token_urlsafe(RANDOM_BYTES)}"
    try:
        Key.model_validate({"name": name, "hash": hash_of(key)})
    except ValidationError:
        message = (
            "a name must be 1 to 64 letters, digits, dots, dashes and underscores, and begin with a letter or digit"
        )
        raise WrongUse(message) from None
    return key


def entry_of(name: str, key: str) -> str:
    """Return the entry of a key for a file of keys."""
    return f"- name: {name}\n  hash: {hash_of(key)}"


def add_key(name: str, key: str, file: Path, show: Callable[[str], None]) -> str:
    """Add a key's hash to a file of keys. Returns a message about it.

    show: gets the key before the file is changed, because a key that nobody has seen must not become valid. Raises
    WrongUse for a file that is not valid or not writable; it then stays unchanged.
    """
    digest = hash_of(key)
    entry: Key | None = None

    def edit(text: str, keys: tuple[Key, ...]) -> str:
        nonlocal entry
        entry = next((one for one in keys if one.name == name), None)
        changed = with_hash(text, name, digest)
        show(key)
        return changed

    storing.change(file, edit, create=True)
    done = f"its hash was added to {file}"
    if entry is not None and (state := state_of(entry)) != "valid":
        done += f"; its entry is {state} there, so it is refused until you change that"
    elif entry is not None:
        done += f"; earlier keys of {name}: {len(entry.hash)}, which stay valid until their hashes are removed"
    return done


def hash_of(key: str) -> str:
    """Return the hash of a key, as text. Raises WrongUse for a key that is too short to be random."""
    if len(key) < SHORTEST or not key.isascii() or not key.isprintable() or " " in key:
        raise WrongUse(
            f"a key must have at least {SHORTEST} printable ASCII characters and no spaces;"
            " create one with: nproxy keys new NAME"
        )
    return f"sha256:{digest_of(key).hex()}"


def remove_key(name: str, file: Path, digest: str | None) -> str:
    """Remove the entry of `name` from a file, or one of its hashes. Returns a message about what was removed.

    digest: the beginning of a hash, as `nproxy keys list` shows it; None for the whole entry. Raises WrongUse if the
    file has no such key or no other one, or is not valid or not writable; it then stays unchanged.
    """
    removed = ""

    def edit(text: str, keys: tuple[Key, ...]) -> str:
        nonlocal removed
        position = _position(name, keys, file)
        if digest is None:
            _demand_others(name, keys, file)
            removed = f"{name} was removed from {file}"
            return without_entry(text, position)
        at = _position_of_hash(digest, position, keys, file)
        removed = f"sha256:{keys[position].hash[at].hex()} of {name} was removed from {file}"
        return without_hash(text, position, at)

    storing.change(file, edit)
    return removed


def _position(name: str, keys: tuple[Key, ...], file: Path) -> int:
    """Return the position of a key in the list. Raises WrongUse if it is not there."""
    for position, key in enumerate(keys):
        if key.name == name:
            return position
    raise WrongUse(f"no key in {file} is named {name}; see: nproxy keys list --file {file}")


def _demand_others(name: str, keys: tuple[Key, ...], file: Path) -> None:
    """Raise WrongUse if `name` is the only key of a file."""
    if len(keys) == 1:
        raise WrongUse(
            f"{name} is the only key in {file}, and a file without keys is refused; set disabled: true there"
        )


def _position_of_hash(digest: str, position: int, keys: tuple[Key, ...], file: Path) -> int:
    """Return the position of a hash in an entry. Raises WrongUse if it is not there once, or is the only one."""
    key = keys[position]
    given = _BEGIN_OF_HASH.fullmatch(digest)
    if given is None:
        raise WrongUse("a hash has 64 hexadecimal digits, of which the first eight or more must be given")
    found = [at for at, one in enumerate(key.hash) if one.hex().startswith(given[1].lower())]
    if len(found) != 1:
        known = f"{key.name} has {len(found) or 'no'} hashes that begin with {given[1]}"
        raise WrongUse(f"{known}; see: nproxy keys list --file {file}")
    if len(key.hash) == 1:
        _demand_others(key.name, keys, file)
        raise WrongUse(f"{key.name} has only this key; to remove its entry as well, leave out --hash")
    return found[0]
