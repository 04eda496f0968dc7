"""The user's request to end early: Ctrl-C, or SIGTERM."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(slots=True)
class EarlyEnd:
    """Whether the user wants to end early. number: of the signal. A second one ends the process at once, as usual."""

    event: asyncio.Event = field(default_factory=asyncio.Event)
    number: int | None = None

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Handle the signals while the block runs."""
        loop = asyncio.get_running_loop()

        def hear(number: int) -> None:
            self.number = number
            self.event.set()
            for each in _SIGNALS:
                loop.remove_signal_handler(each)

        for number in _SIGNALS:
            loop.add_signal_handler(number, hear, number)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
