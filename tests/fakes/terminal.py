"""Runs a program at a real terminal: a pty whose session it leads, so that Ctrl-C reaches it as from a keyboard."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import signal
import struct
import sys
import termios
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

CONTROL_C, CONTROL_D = "\x03", "\x04"

_ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|\x1b[=>]")


@dataclass(slots=True)
class Terminal:
    """The program's output, and a keyboard. raw: the output as it came, with escape sequences."""

    process: asyncio.subprocess.Process
    _fd: int
    raw: bytearray = field(default_factory=bytearray)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def text(self) -> str:
        """The output without escape sequences: every redrawn frame, one below the other."""
        return _ESCAPES.sub(b"", bytes(self.raw)).decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n")

    def type(self, keys: str) -> None:
        """Press keys; a lone surrogate stands for a byte that is not UTF-8."""
        os.write(self._fd, keys.encode("utf-8", "surrogateescape"))

    async def until(self, wanted: str | Callable[[str], bool], seconds: float = 60.0) -> str:
        """Wait until the text contains or satisfies `wanted`; return the text. After `seconds`, fails with the text."""
        holds = (lambda text: wanted in text) if isinstance(wanted, str) else wanted
        try:
            async with asyncio.timeout(seconds):
                while not holds(self.text):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"not there within {seconds:g} s; there is:\n{self.text[-4000:]}") from None
        return self.text

    async def ended(self, seconds: float = 60.0) -> int:
        """Wait for the end; return the exit code."""
        async with asyncio.timeout(seconds):
            return await self.process.wait()

    def read(self) -> None:
        """Take what the program wrote. Called by the event loop."""
        with contextlib.suppress(OSError):  # the other side is closed: the program has ended
            self.raw += os.read(self._fd, 65536)
        self._news.set()


def _at_a_terminal() -> None:
    """Runs in the new process: it leads its session, and Ctrl-C works even if tests run in the background ignore it."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@asynccontextmanager
async def terminal(*argv: str, columns: int = 120, lines: int = 40, **environ: str) -> AsyncIterator[Terminal]:
    """Run a program at a terminal of this size. It is killed if it has not ended when the block is left."""
    ours, its = os.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=its,
        stdout=its,
        stderr=its,
        env={**kept, "TERM": "xterm-256color", **environ},
        start_new_session=True,
        preexec_fn=_at_a_terminal,
    )
    os.close(its)
    screen = Terminal(process, ours)
    loop = asyncio.get_running_loop()
    loop.add_reader(ours, screen.read)
    try:
        yield screen
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        loop.remove_reader(ours)
        os.close(ours)


def nproxy(*words: str) -> tuple[str, ...]:
    """The command that starts `nproxy` from this environment."""
    return (sys.executable, "-m", "nproxy", *words)
