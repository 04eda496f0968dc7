"""SIGHUP and SIGUSR2 while `nproxy serve` starts, as a sidecar sends them that has just written the settings."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

STARTS = """
import os, signal, sys
from nproxy.cli import main
from nproxy.config import Source

def read(_):
    os.kill(os.getpid(), getattr(signal, sys.argv[1]))
    sys.exit(7)

Source.read = read
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever started the tests may have ignored it
main(["serve"])
"""


def started(name: str, stdin: int) -> int:
    return subprocess.run([sys.executable, "-c", STARTS, name], stdin=stdin, timeout=60, check=False).returncode


@pytest.mark.parametrize("name", ["SIGHUP", "SIGUSR2"])
def test_a_reload_signal_does_not_end_the_start(name: str) -> None:
    assert started(name, subprocess.DEVNULL) == 7


def test_a_terminal_that_is_closed_does() -> None:
    ours, its = pty.openpty()
    try:
        assert started("SIGHUP", its) == -1
    finally:
        os.close(ours)
        os.close(its)
