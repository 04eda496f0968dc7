"""The engine's log lines are written by a thread, so that a pipe that nobody reads stops neither event loop
nor step loop.
"""

from __future__ import annotations

import logging
import os
import queue
from logging.handlers import QueueHandler, QueueListener

STANDARD_ERROR = 2
MOST_LINES = 10_000
"""The most lines that wait to be written; further ones are dropped."""
FLUSH_SECONDS = 2.0
"""How long the end of the process waits for lines that have not been written."""


class _Written(logging.Handler):
    """Writes each line unchanged to a file descriptor.

    Called by one thread, which may block in it, so it has no lock: the process would wait for it when it ends.
    """

    def __init__(self, fd: int) -> None:
        super().__init__()
        self._fd = fd

    def createLock(self) -> None:
        self.lock = None

    def handle(self, record: logging.LogRecord) -> bool:
        self.emit(record)  # the base class takes the lock, from Python 3.13 on whether there is one or not
        return True

    def emit(self, record: logging.LogRecord) -> None:
        rest = f"{record.getMessage()}\n".encode("utf-8", "backslashreplace")
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError:
            pass  # full, closed or gone: the next line may succeed


class Waiting(QueueHandler):
    """Formats records where they are logged, and has them written by a thread of its own.

    The number of dropped lines is logged as a line of its own as soon as there is room for it.
    """

    queue: queue.Queue[logging.LogRecord]

    def __init__(self, fd: int = STANDARD_ERROR, most_lines: int = MOST_LINES) -> None:
        super().__init__(queue.Queue(most_lines))
        self._dropped = 0
        QueueListener(self.queue, _Written(fd)).start()  # a daemon thread, which keeps no process from ending

    def enqueue(self, record: logging.LogRecord) -> None:
        """Put a record into the queue, or count it as dropped if the queue is full."""
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
        """Wait until everything logged so far is written, or until the time is over."""
        with self.queue.all_tasks_done:
            self.queue.all_tasks_done.wait_for(lambda: not self.queue.unfinished_tasks, FLUSH_SECONDS)


def configure(level: int | str, form: str) -> None:
    """Send this process's records from `level` on to standard error. form: as logging.Formatter takes it."""
    _hold_the_number()
    logging.basicConfig(level=level, handlers=[Waiting()], format=form)


def _hold_the_number() -> None:
    """Open the null device if standard error is closed: otherwise lines would go to whatever file gets its number."""
    try:
        os.fstat(STANDARD_ERROR)
    except OSError:
        while os.open(os.devnull, os.O_RDWR) < STANDARD_ERROR:
            pass
