"""Changes the file of keys: atomically, and one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from nproxy.cli.wrong_use import WrongUse
from nproxy.config import ConfigError, Key, read_keys


def read(file: Path) -> tuple[Key, ...]:
    """Return the keys of a file. Raises WrongUse if it is not valid or not readable."""
    with _as_wrong_use(file):
        return read_keys(file)


def change(file: Path, edit: Callable[[str, tuple[Key, ...]], str], *, create: bool = False) -> None:
    """Replace a file of keys atomically: a gateway that reads it meanwhile finds the old file or the new one.

    edit: gets the text and the keys of the file, and returns the new text; what it raises is raised. create: a file
    that does not exist counts as an empty one. Raises WrongUse if the old or the new file is not valid, or the file is
    not writable; it then stays unchanged.
    """
    with contextlib.ExitStack() as held:
        with _as_wrong_use(file):
            held.enter_context(_alone(file.resolve().parent))
            there = file.exists() or not create
            keys = read_keys(file) if there else ()
            text = file.read_bytes().decode("utf-8-sig") if there else ""
        changed = edit(text, keys)
        with _as_wrong_use(file):
            _replace(file.resolve(), changed, there=there)


@contextlib.contextmanager
def _as_wrong_use(file: Path) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise WrongUse(str(error)) from error
    except RuntimeError as error:  # Python 3.11 and 3.12, from `resolve`
        raise WrongUse(f"{file}: too many levels of symbolic links") from error
    except OSError as error:
        raise WrongUse(f"{file}: {(error.strerror or str(error)).lower()}") from error


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


def _replace(file: Path, text: str, *, there: bool) -> None:
    """Write the text beside the file, and move it to its place if it is valid.

    file: not a link, since the target of a link may be on another disk. there: whether it exists.
    """
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


def _allow_the_same(file: Path, other: Path) -> None:
    """Give another file the owner, the group and the mode of the first, so that the same users can read it.

    Raises OSError if this process may not do so.
    """
    had, has = file.stat(), other.stat()
    if (had.st_uid, had.st_gid) != (has.st_uid, has.st_gid):
        os.chown(other, had.st_uid, had.st_gid)
    other.chmod(stat.S_IMODE(had.st_mode))
