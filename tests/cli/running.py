"""Commands as a user runs them, and what they leave: an exit code and two streams."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass
from functools import partial

from click.testing import CliRunner

from nproxy.cli import main


@dataclass(frozen=True, slots=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    def line(self, code: int) -> str:
        """The only line that was printed, on standard error, by a command that ended with this code."""
        assert (self.code, self.out) == (code, "")
        (line,) = self.err.splitlines()
        return line


async def nproxy(*words: str, **environ: str) -> Done:
    """The command in a process of its own, with nothing to read."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NPROXY_")}
    pipe, none = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    argv = (sys.executable, "-m", "nproxy", *words)
    process = await asyncio.create_subprocess_exec(*argv, stdin=none, stdout=pipe, stderr=pipe, env={**kept, **environ})
    out, err = await process.communicate()
    assert process.returncode is not None
    return Done(process.returncode, out.decode(), err.decode())


async def in_here(*words: str, given: bytes = b"", **environ: str) -> Done:
    """The command in a thread of this process, as starting one takes long. given: what it reads."""
    run = partial(CliRunner().invoke, main, [*words], input=given, env=environ)
    result = await asyncio.to_thread(run)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Done(result.exit_code, result.stdout, result.stderr)
