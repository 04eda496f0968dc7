"""The upstream and the load client, compiled when they are first used and whenever their source has changed."""

from __future__ import annotations

import hashlib
import json
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from bench.gateway.cases import Case
from tests.compatibility.installing import pinned
from tests.real.processes import ROOT

SOURCES = Path(__file__).parent
BUILT = ROOT / ".venvs" / "bench-gateway"
FLAGS = ("-O2", "-Wall", "-Wextra", "-Werror")
CLIENT_SECONDS = 120.0
"""How long the client may take beyond its time before it counts as stuck: requests in flight are read to their end."""


@dataclass(frozen=True, slots=True)
class Count:
    """Complete answers, and the chunks of all choices."""

    answers: int
    chunks: int


@dataclass(frozen=True, slots=True)
class Told:
    """What the client reports of a run. Times are medians in microseconds."""

    seconds: float
    in_time: Count
    """Counts within the time that was asked for."""
    all: Count
    """Counts of the whole run."""
    first_us: int
    last_first_us: int
    whole_us: int
    whole_p99_us: int
    reconnects: int
    errors: dict[str, int]
    cpu_seconds: float = 0.0
    """What the client itself has used."""
    complaint: str = ""
    """What was wrong with the first wrong answer."""

    @classmethod
    def read(cls, line: str, cpu_seconds: float, complaint: str) -> Told:
        """Parse the client's line of JSON."""
        told = json.loads(line)
        told["in_time"], told["all"] = Count(**told["in_time"]), Count(**told["all"])
        return cls(**told, cpu_seconds=cpu_seconds, complaint=complaint)


def compiled(name: str) -> Path:
    """Return the program compiled from NAME.c. Raises RuntimeError if it does not compile."""
    source = SOURCES / f"{name}.c"
    read = [source, *sorted(SOURCES.glob("*.h"))]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in read)).hexdigest()[:16]
    program = BUILT / f"{name}-{digest}"
    BUILT.mkdir(parents=True, exist_ok=True)
    with FileLock(BUILT / f"{name}.lock"):  # several test processes may need it at once
        if not program.exists():
            made = program.with_suffix(".new")
            argv = [*compiler(), *FLAGS, "-o", str(made), str(source)]
            done = subprocess.run(argv, capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"{source} does not compile:\n{done.stderr}")
            made.rename(program)
    return program


def compiler() -> list[str]:
    """Return the command of this machine's C compiler, or of the one that comes as a wheel."""
    if found := shutil.which("cc") or shutil.which("gcc"):
        return [found]
    return [str(pinned("ziglang") / "ziglang" / "zig"), "cc"]


@contextmanager
def upstream() -> Iterator[tuple[int, int]]:
    """Run the upstream; gives its port and its process id."""
    with subprocess.Popen([str(compiled("upstream")), "0"], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            yield int(child.stdout.readline()), child.pid
        finally:
            child.terminate()


def ask(case: Case, port: int, request: bytes, seconds: float) -> Told:
    """Play a case against this port.

    seconds: how long new requests are sent, unless the case counts answers.
    """
    numbers = (port, case.connections, round(seconds * 1000), case.answers, case.n, case.chunks, case.pause_ms)
    argv = [str(compiled("client")), *map(str, numbers)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(argv, input=request, capture_output=True, timeout=seconds + CLIENT_SECONDS)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    complaint = done.stderr.decode(errors="replace").strip()
    if done.returncode:
        raise RuntimeError(f"the load client ended with {done.returncode}: {complaint}")
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Told.read(done.stdout.decode(), spent, complaint)
