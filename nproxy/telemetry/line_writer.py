"""Log lines on their way out: written by a thread, so that a pipe nobody reads or a full disk stops no event loop.

A thread that is woken takes the processor and the interpreter's lock from the loop, and each write is a system call:
the thread pauses after it has written, and writes what came meanwhile together.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from itertools import accumulate
from select import PIPE_BUF

MOST_LINES = 10_000
"""Lines that wait to be written; beyond, new ones are dropped and counted."""
FLUSH_SECONDS = 2.0
"""How long the end of the process waits for what has not been written."""
PAUSE_SECONDS = 0.01
"""How late a line may come behind another one."""


class LineWriter(logging.Handler):
    """Formats records where they are made, and writes them in their order in a thread of its own.

    fd: the file descriptor to write to. What waits is written when logging ends with the process (`flush`), as far as
    it can be written in time. What is written together is no longer than PIPE_BUF, unless it is one record: so much
    goes into a pipe as one piece, whoever else writes there.
    """

    def __init__(self, fd: int, most_lines: int = MOST_LINES) -> None:
        super().__init__()
        self.fd = fd
        self._dropped = 0
        self._counting = threading.Lock()
        self._torn = False
        self._most_lines = most_lines
        self._waiting: deque[str | threading.Event] = deque()
        self._some = threading.Event()
        # a daemon, as a thread that waits for a full pipe would keep the process from ending
        threading.Thread(target=self._write_all, name="nproxy-log", daemon=True).start()

    @property
    def dropped(self) -> int:
        """Records that were not written, because too many waited or the descriptor took none."""
        return self._dropped

    def handle(self, record: logging.LogRecord) -> bool:
        """Take a record, in any thread. The library's would hold a lock meanwhile, which nothing here needs."""
        if self.filters and not self.filter(record):
            return False
        self.emit(record)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        self.say(self.format(record))

    def say(self, text: str) -> None:
        """Write a text of whole lines behind what waits."""
        if len(self._waiting) < self._most_lines:
            self._put(text)
        else:
            self._drop(1)

    def flush(self) -> None:
        """Wait until what was logged up to now is written, or cannot be in time."""
        written = threading.Event()
        self._put(written)
        written.wait(FLUSH_SECONDS)

    def _put(self, what: str | threading.Event) -> None:
        self._waiting.append(what)
        if not self._some.is_set():
            self._some.set()

    def _write_all(self) -> None:
        while True:
            self._some.wait()
            self._some.clear()  # before the look: what comes behind it sets it again
            while self._waiting:
                self._write(self._taken())
            time.sleep(PAUSE_SECONDS)

    def _taken(self) -> list[bytes]:
        """The first of what waits, and as much behind it as may be written with it."""
        taken: list[bytes] = []
        size = 0
        while self._waiting:
            waiting = self._waiting[0]
            if isinstance(waiting, threading.Event):
                if not taken:
                    self._waiting.popleft()
                    waiting.set()
                return taken
            line = f"{waiting}\n".encode("utf-8", "backslashreplace")
            size += len(line)
            if taken and size > PIPE_BUF:
                return taken
            taken.append(line)
            self._waiting.popleft()
        return taken

    def _write(self, lines: list[bytes]) -> None:
        data = b"".join(lines)
        rest = b"\n" + data if self._torn and data else data
        try:
            while rest:
                rest = rest[os.write(self.fd, rest) :]
                self._torn = bool(rest)
        except OSError:  # full, closed or gone: the next line may fare better
            written = len(data) - len(rest)
            self._drop(sum(end > written for end in accumulate(map(len, lines))))

    def _drop(self, lines: int) -> None:
        with self._counting:
            self._dropped += lines
