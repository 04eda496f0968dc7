"""How many files this process may hold open."""

from __future__ import annotations

import contextlib
import resource


def take_all_files() -> None:
    """Allow this process and its children as many open files as it may have: each connection is one of them."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # some systems tell of more than they give
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
