"""Signal handlers of serving processes, and of the parent of such processes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from nproxy.gateway.reload import Reloader


@contextmanager
def calls(action: Callable[[], None], *numbers: signal.Signals) -> Iterator[None]:
    """Call `action` in the event loop at each of these signals while the block runs."""
    loop = asyncio.get_running_loop()
    for number in numbers:
        loop.add_signal_handler(number, action)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def ending_signals(stop: asyncio.Event, hurry: asyncio.Event) -> AbstractContextManager[None]:
    """Handle SIGTERM and SIGINT while the block runs: the first sets `stop`, further ones set `hurry`."""
    return calls(lambda: (hurry if stop.is_set() else stop).set(), signal.SIGTERM, signal.SIGINT)


def reloads_at_hangup(reloader: Reloader) -> AbstractContextManager[None]:
    """Handle SIGHUP while the block runs: read the settings again.

    A terminal that is closed sends SIGHUP, too. Then it is handled like SIGTERM.
    """
    in_a_terminal = _in_a_terminal()

    def hung_up() -> None:
        if in_a_terminal and not _in_a_terminal():
            signal.raise_signal(signal.SIGTERM)
        else:
            reloader.ask()

    return calls(hung_up, signal.SIGHUP)


def _in_a_terminal() -> bool:
    return os.isatty(0)
