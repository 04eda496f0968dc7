"""The limit on open files of this process."""

from __future__ import annotations

import contextlib
import resource


def take_all_files() -> None:
    """Raise the limit on open files of this process and its children to the maximum: each connection is a file."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # some systems report a higher maximum than they grant
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
