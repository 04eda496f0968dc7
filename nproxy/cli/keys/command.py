"""The commands: create a key, and compute the hash of an existing one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from nproxy.cli.keys.writing import with_hash
from nproxy.cli.wrong_use import WrongUse
from nproxy.config import ConfigError, Key, digest_of, read_keys

RANDOM_BYTES = 32
SHORTEST = 20
"""Minimum length of a key that was made elsewhere. A plain hash protects what is random, not what can be guessed."""


def new_key(name: str, file: Path | None) -> tuple[str, str]:
    """Create a key for `name`, and add its hash to the file if one is given.

    Returns the key, and its entry or a message about the file. Raises WrongUse for an invalid name, and for a file that
    is not valid or not writable; the file then stays unchanged.
    """
    key = f"sk-nproxy-{secrets.token_urlsafe(RANDOM_BYTES)}"
    digest = hash_of(key)
    try:
        Key.model_validate({"name": name, "hash": digest})
    except ValidationError:
        message = (
            "a name must be 1 to 64 letters, digits, dots, dashes and underscores, and begin with a letter or digit"
        )
        raise WrongUse(message) from None
    if file is None:
        return key, f"- name: {name}\n  hash: {digest}"
    try:
        before = _put(file, name, digest)
    except ConfigError as error:
        raise WrongUse(str(error)) from error
    except OSError as error:
        raise WrongUse(f"{file}: {(error.strerror or str(error)).lower()}") from error
    done = f"its hash was added to {file}"
    if before:
        done += f"; earlier keys of {name}: {before}, which stay valid until their hashes are removed"
    return key, done


def hash_of(key: str) -> str:
    """Return the hash of a key, as text. Raises WrongUse for a key that is too short to be random."""
    if len(key) < SHORTEST or not key.isascii() or not key.isprintable() or " " in key:
        raise WrongUse(
            f"a key must have at least {SHORTEST} printable ASCII characters and no spaces;"
            " create one with: nproxy keys new NAME"
        )
    return f"sha256:{digest_of(key).hex()}"


def _put(file: Path, name: str, digest: str) -> int:
    """Add the hash to the file atomically: a gateway that reads it meanwhile finds the old file or the new one.

    Returns how many hashes the name had before.
    """
    with _alone(file.resolve().parent):
        return _put_alone(file, name, digest)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold a lock against other writers of files in this folder.

    If two processes read and write back at the same time, one change would be lost.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # NFS does not lock folders
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _put_alone(file: Path, name: str, digest: str) -> int:
    there = file.exists()
    before = sum(len(key.hash) for key in read_keys(file) if key.name == name) if there else 0
    text = with_hash(file.read_bytes().decode("utf-8-sig") if there else "", name, digest)
    file = file.resolve()  # the temporary file is put beside the target of a link, which may be on another disk
    handle, written = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")  # its mode is 0600
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(text.encode())
        read_keys(Path(written))
        if there:
            _allow_the_same(file, Path(written))
        Path(written).replace(file)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(written).unlink()
        raise
    return before


def _allow_the_same(file: Path, other: Path) -> None:
    """Give another file the owner, the group and the mode of the first, so that the same users can read it.

    Raises OSError if this process may not do so.
    """
    had, has = file.stat(), other.stat()
    if (had.st_uid, had.st_gid) != (has.st_uid, has.st_gid):
        os.chown(other, had.st_uid, had.st_gid)
    other.chmod(stat.S_IMODE(had.st_mode))
