"""Whether files have changed: looked at now and then, by their content.

Polled, because what the file system tells of by itself is not what is meant: Kubernetes swaps a symbolic link above a
ConfigMap's file, editors put a new file under the old name, and network file systems tell of nothing.
"""

from __future__ import annotations

import errno
import hashlib
import stat
from collections.abc import Mapping
from pathlib import Path

Digest = bytes
Stamp = tuple[int, int, int, int, int]
"""Device, inode, size, and when content and inode changed: rsync and cp -p keep the first of these times."""

_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class Watch:
    """Looks at files, cheaply: their content is read only after their stamps have changed.

    files: what was read of each, None for what was not there. `look` blocks: it asks the file system.
    """

    def __init__(self, files: Mapping[Path, Digest | None]) -> None:
        self._digests = dict(files)
        self._stamps: dict[Path, Stamp | None] = {}
        self._moving = False

    def look(self) -> bool:
        """Whether the content of any file is another than at the last look that said so, or than it was read first.

        A file that may be half written is waited for: the answer comes once nothing has moved between two looks. So it
        is with one that cannot be read because the process, or the machine, is short of something.
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
    """What tells one content of a file from another; None where there is no regular file that can be read."""
    try:
        return _digest(path)
    except OSError:
        return None


def _digest(path: Path) -> Digest | None:
    """The same; raises OSError where it may be otherwise in a moment: nothing is known of the file then."""
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
