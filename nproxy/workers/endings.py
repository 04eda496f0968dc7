"""How a process ended, in words."""

from __future__ import annotations

import signal
from contextlib import suppress


def how_it_ended(code: int | None) -> str:
    """Describe a return code, to follow the name of a process: `was killed by SIGKILL`, `ended with 1`."""
    if code is not None and code < 0:
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-code).name}"
    return f"ended with {code}"
