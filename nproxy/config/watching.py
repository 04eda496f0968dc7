"""Whether files have changed: they are polled, and compared by content.

They are polled because file system notifications do not fit: Kubernetes swaps a symbolic link above a ConfigMap's file,
editors put a new file under the old name, and network file systems send no notifications.
"""

from __future__ import annotations

import errno
import hashlib
import stat
from collections.abc import Mapping
from pathlib import Path

Digest = bytes
Stamp = tuple[int, int, int, int, int]
"""Device, inode, size, and the change times of content and inode: rsync and cp -p preserve the first of these times."""

_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class Watch:
    """Looks at files cheaply: their content is read only after their stamps have changed.

    files: the digest of each, None for one that did not exist. `look` blocks: it asks the file system.
    """

    def __init__(self, files: Mapping[Path, Digest | None]) -> None:
        self._digests = dict(files)
        self._stamps: dict[Path, Stamp | None] = {}
        self._moving = False

    def look(self) -> bool:
        """Whether the content of any file has changed since the last look that returned True.

        The first look compares with the digests given.

        A file may be half written, so the answer comes only once nothing has changed between two looks. It is also
        delayed while a file cannot be read because the process or the machine lacks resources.
        """
        stamps = {path: _stamp(path) for path in self._digests}
        if stamps != self._stamps:
            self._stamps, self._moving = stamps, True
            return False
        if not self._moving:
            return False
        try:
            digests = {path: _digest(path) for path in self._digests}
        except OSError:
            return False
        self._moving = False
        changed = digests != self._digests
        self._digests = digests
        return changed


def digest(path: Path) -> Digest | None:
    """Return a digest of a file's content; None if there is no regular file that can be read."""
    try:
        return _digest(path)
    except OSError:
        return None


def _digest(path: Path) -> Digest | None:
    """Return the same; raises OSError if a shortage that may soon pass prevents the reading."""
    try:
        return hashlib.sha256(path.read_bytes()).digest() if path.is_file() else None  # a pipe can be read only once
    except OSError as error:
        if error.errno in _SHORTAGES:
            raise
        return None


def _stamp(path: Path) -> Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
