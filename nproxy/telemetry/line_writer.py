"""A log handler that writes in a thread, so that a pipe that nobody reads or a full disk does not block the event loop.

Waking a thread takes CPU time and the interpreter's lock (GIL) from the event loop, and each write is a system call: so
the thread pauses after it has written, and then writes what has come meanwhile in one call.
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
"""Maximum number of lines that wait to be written; beyond it, new ones are dropped and counted."""
MOST_LONG = 16 << 20
"""Maximum number of characters of long lines that wait: with content, a line may have half a million."""
_LONG = 4096
FLUSH_SECONDS = 2.0
"""How long the end of the process waits for lines that have not been written."""
PAUSE_SECONDS = 0.01
"""The longest delay of a line that follows another one."""


class LineWriter(logging.Handler):
    """Formats records in the calling thread, and writes them in order in a thread of its own.

    fd: the file descriptor to write to. When logging ends with the process (`flush`), lines that wait are written, as
    far as there is time. Lines written together are no longer than PIPE_BUF, unless it is a single record: a pipe takes
    that many bytes in one piece, whoever else writes to it.
    """

    def __init__(self, fd: int, most_lines: int = MOST_LINES) -> None:
        super().__init__()
        self.fd = fd
        self._dropped = 0
        self._counting = threading.Lock()
        self._torn = False
        self._most_lines = most_lines
        self._long = 0  # characters of the long lines that wait
        self._waiting: deque[str | threading.Event] = deque()
        self._some = threading.Event()
        # a daemon, because a thread that waits for a full pipe would keep the process from ending
        threading.Thread(target=self._write_all, name="nproxy-log", daemon=True).start()

    @property
    def dropped(self) -> int:
        """Records that were not written, because too many waited or the descriptor did not accept them."""
        return self._dropped

    def handle(self, record: logging.LogRecord) -> bool:
        """Take a record, from any thread. The library's method would hold a lock, which is not needed here."""
        if self.filters and not self.filter(record):
            return False
        self.emit(record)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        """As the library demands, a record that cannot be formatted is no error of whoever logged it."""
        try:
            text = self.format(record)
        except Exception:
            self.handleError(record)
        else:
            self.say(text)

    def say(self, text: str) -> None:
        """Write a text of whole lines after those that wait."""
        if len(self._waiting) < self._most_lines and (len(text) < _LONG or self._reserved(len(text))):
            self._put(text)
        else:
            self._drop(1)

    def _reserved(self, length: int) -> bool:
        """Count a long line among those that wait, if there is room for it."""
        with self._counting:
            if self._long + length > MOST_LONG:
                return False
            self._long += length
        return True

    def flush(self) -> None:
        """Wait until all records logged so far are written, but no longer than FLUSH_SECONDS."""
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
            self._some.clear()  # before the loop: records that come later set it again
            while self._waiting:
                self._write(self._taken())
            time.sleep(PAUSE_SECONDS)

    def _taken(self) -> list[bytes]:
        """Remove and return the first line that waits, and as many more as may be written with it."""
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
            if len(waiting) >= _LONG:
                with self._counting:
                    self._long -= len(waiting)
        return taken

    def _write(self, lines: list[bytes]) -> None:
        data = b"".join(lines)
        rest = b"\n" + data if self._torn and data else data
        try:
            while rest:
                rest = rest[os.write(self.fd, rest) :]
                self._torn = bool(rest)
        except OSError:  # full, closed or gone: a later line may succeed
            written = len(data) - len(rest)
            self._drop(sum(end > written for end in accumulate(map(len, lines))))

    def _drop(self, lines: int) -> None:
        with self._counting:
            self._dropped += lines
