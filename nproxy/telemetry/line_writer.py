"""Log lines on their way out: written by a thread, so that a pipe nobody reads or a full disk stops no event loop."""

from __future__ import annotations

import logging
import os
import queue
import threading

MOST_LINES = 10_000
"""Lines that wait to be written; beyond, new ones are dropped and counted."""
FLUSH_SECONDS = 2.0
"""How long the end of the process waits for what has not been written."""


class LineWriter(logging.Handler):
    """Formats records where they are made, and writes them in their order in a thread of its own.

    fd: the file descriptor to write to. What waits is written when logging ends with the process (`flush`), as far as
    it can be written in time.
    """

    def __init__(self, fd: int, most_lines: int = MOST_LINES) -> None:
        super().__init__()
        self.fd = fd
        self._dropped = 0
        self._counting = threading.Lock()
        self._torn = False
        self._most_lines = most_lines
        self._waiting: queue.SimpleQueue[str | threading.Event] = queue.SimpleQueue()
        # a daemon, as a thread that waits for a full pipe would keep the process from ending
        threading.Thread(target=self._write_all, name="nproxy-log", daemon=True).start()

    @property
    def dropped(self) -> int:
        """Records that were not written, because too many waited or the descriptor took none."""
        return self._dropped

    def emit(self, record: logging.LogRecord) -> None:
        self.say(self.format(record))

    def say(self, text: str) -> None:
        """Write a text of whole lines behind what waits."""
        if self._waiting.qsize() < self._most_lines:
            self._waiting.put(text)
        else:
            self._drop()

    def flush(self) -> None:
        """Wait until what was logged up to now is written, or cannot be in time."""
        written = threading.Event()
        self._waiting.put(written)
        written.wait(FLUSH_SECONDS)

    def _write_all(self) -> None:
        while True:
            waiting = self._waiting.get()
            if isinstance(waiting, threading.Event):
                waiting.set()
            else:
                self._write(f"{waiting}\n".encode("utf-8", "backslashreplace"))

    def _write(self, data: bytes) -> None:
        rest = b"\n" + data if self._torn else data
        try:
            while rest:
                rest = rest[os.write(self.fd, rest) :]
                self._torn = bool(rest)
        except OSError:  # full, closed or gone: the next line may fare better
            self._drop()

    def _drop(self) -> None:
        with self._counting:
            self._dropped += 1
