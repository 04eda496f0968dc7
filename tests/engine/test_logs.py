"""The engine's log: whoever does not read it, or has closed it, holds up nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.engine.asking import chat
from tests.engine.conftest import MODEL
from tests.fakes import tiny_chat
from tests.ports import free_port
from tests.real.metrics import wait_for
from tests.real.processes import ROOT

CHATTERS = """
import logging, os, sys
from engine import logs
logs.configure("INFO", "%(levelname)s %(message)s")
for number in range(int(sys.argv[1])):
    logging.getLogger("engine").info("line %d", number)
os.write(1, b"said")
if sys.argv[2:]:
    sys.stdin.read(1)
    logging.getLogger("engine").info("another")
logging.shutdown()
os._exit(0)
"""


@contextlib.contextmanager
def pipe(*, full: bool) -> Iterator[tuple[int, int]]:
    """A pipe's two ends; full: with as many empty lines in it as it takes."""
    reader, writer = os.pipe()
    try:
        os.set_blocking(writer, False)
        with contextlib.suppress(BlockingIOError):
            while full:
                os.write(writer, b"\n" * 4096)
        os.set_blocking(writer, True)
        yield reader, writer
    finally:
        os.close(reader)
        with contextlib.suppress(OSError):
            os.close(writer)


def chatters(*words: str, stderr: int) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-c", CHATTERS, *words]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, cwd=ROOT)


def test_what_is_logged_is_written_to_the_last_line() -> None:
    done = subprocess.run([sys.executable, "-c", CHATTERS, "5000"], capture_output=True, timeout=60, cwd=ROOT)
    assert done.stderr.decode().splitlines() == [f"INFO line {number}" for number in range(5000)]


def test_nobody_reads_and_it_ends_all_the_same() -> None:
    with pipe(full=True) as (_, writer), chatters("30000", stderr=writer) as process:
        assert process.wait(60) == 0


def test_how_many_lines_were_dropped_is_said_once_somebody_reads() -> None:
    with pipe(full=True) as (reader, writer), chatters("30000", "and another", stderr=writer) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.read(4) == b"said"
        os.close(writer)
        os.set_blocking(reader, False)
        said, until = b"", time.monotonic() + 60
        while b"line 9999\n" not in said and time.monotonic() < until:  # the 10,000 that waited
            with contextlib.suppress(BlockingIOError):
                said += os.read(reader, 1 << 16)
        process.stdin.write(b"\n")
        process.stdin.flush()
        os.set_blocking(reader, True)
        while data := os.read(reader, 1 << 16):
            said += data
        first, last = said.decode().splitlines()[-2:]
        assert first.endswith(" log lines were dropped, because the output was not read") and last == "INFO another"
        written = said.count(b"INFO line")
        assert int(first.split()[1]) == 30_000 - written and 10_000 <= written < 11_000


@pytest.mark.parametrize("shell", ['exec "$@" 2>&-', 'exec "$@" 0<&- 2>&-'])
def test_a_closed_standard_error_gives_its_number_to_nobody(shell: str, tmp_path: Path) -> None:
    tells = "print(os.readlink('/proc/self/fd/2'), open(sys.argv[1], 'w').fileno())"
    script = CHATTERS.partition("for ")[0] + tells
    argv = ["/bin/sh", "-c", shell, "sh", sys.executable, "-c", script, str(tmp_path / "file")]
    device, number = subprocess.run(argv, stdout=subprocess.PIPE, timeout=60, cwd=ROOT).stdout.split()
    assert device == b"/dev/null" and int(number) > 2


def test_an_engine_serves_and_ends_while_nobody_reads_its_log(tmp_path: Path) -> None:
    port = free_port()
    argv = [sys.executable, "-m", "engine", str(tiny_chat.save(tmp_path, 256)), "--port", str(port)]
    with pipe(full=True) as (_, writer):
        process = subprocess.Popen([*argv, "--served-model-name", MODEL, "--num-blocks", "64"], stderr=writer, cwd=ROOT)
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as client:

                def ready() -> bool:
                    with contextlib.suppress(httpx.TransportError):
                        return client.get("/health").status_code == 200
                    return False

                wait_for(ready, seconds=60, what="an engine")
                assert client.post("/v1/chat/completions", json=chat(max_tokens=4)).status_code == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
            process.wait()
