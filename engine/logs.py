"""The engine's log lines on their way out: written by a thread, so that a pipe nobody reads stops neither loop."""

from __future__ import annotations

import logging
import os
import queue
from logging.handlers import QueueHandler, QueueListener

STANDARD_ERROR = 2
MOST_LINES = 10_000
"""Lines that wait to be written; beyond, new ones are dropped."""
FLUSH_SECONDS = 2.0
"""How long the end of the process waits for what has not been written."""


class _Written(logging.Handler):
    """Writes each line as it is to a file descriptor. Called by one thread, which may stand still in it: no lock."""

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd

    def createLock(self) -> None:
        self.lock = None  # the end of the process would wait for it

    def emit(self, record: logging.LogRecord) -> None:
        rest = f"{record.getMessage()}\n".encode("utf-8", "backslashreplace")
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            pass  # full, closed or gone: the next line may fare better


class Waiting(QueueHandler):
    """Formats records where they are made, and has them written by a thread of its own.

    How many were dropped is said by a line of its own, as soon as there is room for it.
    """

    queue: queue.Queue[logging.LogRecord]

    def __init__(self, fd: int = STANDARD_ERROR, most_lines: int = MOST_LINES) -> None:
        super().__init__(queue.Queue(most_lines))
        self._dropped = 0
        QueueListener(self.queue, _Written(fd)).start()  # a daemon: a full pipe keeps no process from ending

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            if self._dropped:
                self.queue.put_nowait(self._how_many())
                self._dropped = 0
            self.queue.put_nowait(record)
        except queue.Full:
            self._dropped += 1

    def _how_many(self) -> logging.LogRecord:
        words = f"{self._dropped} log lines were dropped, because the output was not read"
        record: logging.LogRecord = self.prepare(
            logging.LogRecord(__name__, logging.WARNING, __file__, 0, words, None, None)
        )
        return record

    def flush(self) -> None:
        """Wait until what was logged up to now is written, or cannot be in time."""
        with self.queue.all_tasks_done:
            self.queue.all_tasks_done.wait_for(lambda: not self.queue.unfinished_tasks, FLUSH_SECONDS)


def configure(level: int | str, form: str) -> None:
    """Send the records of this process from `level` on to standard error. form: as logging.Formatter takes it."""
    _hold_the_number()
    logging.basicConfig(level=level, handlers=[Waiting()], format=form)


def _hold_the_number() -> None:
    """Open the null device where standard error is closed: lines would go to whatever gets its number."""
    try:
        os.fstat(STANDARD_ERROR)
    except OSError:
        while os.open(os.devnull, os.O_RDWR) < STANDARD_ERROR:
            pass
