"""Signals during the start: those that a sidecar sends when it has just written the settings, and Ctrl-C."""

from __future__ import annotations

import os
import pty
import signal
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

STARTS_ANOTHER = """
import signal, subprocess, sys
from nproxy.cli.early_signals import outlive_reload_signals

signal.signal(signal.SIGHUP, signal.SIG_DFL)
outlive_reload_signals()
another = "import os, signal, sys; os.kill(os.getpid(), getattr(signal, sys.argv[1]))"
sys.exit(-subprocess.call([sys.executable, "-c", another, sys.argv[1]]))
"""

INTERRUPTED = """
import os, runpy, signal, sys

class Interrupting:
    def find_spec(name, path=None, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupting)
runpy.run_module("nproxy", run_name="__main__")
"""


def started(name: str, stdin: int) -> int:
    return subprocess.run([sys.executable, "-c", STARTS, name], stdin=stdin, timeout=60, check=False).returncode


@pytest.mark.parametrize("name", ["SIGHUP", "SIGUSR2"])
def test_a_reload_signal_does_not_end_the_start(name: str) -> None:
    assert started(name, subprocess.DEVNULL) == 7


@pytest.mark.parametrize("name", ["SIGHUP", "SIGUSR2"])
def test_a_reload_signal_ends_the_programs_that_it_starts_as_always(name: str) -> None:
    argv = [sys.executable, "-c", STARTS_ANOTHER, name]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, timeout=60, check=False)
    assert done.returncode == getattr(signal, name)


def test_a_terminal_that_is_closed_does() -> None:
    ours, its = pty.openpty()
    try:
        assert started("SIGHUP", its) == -1
    finally:
        os.close(ours)
        os.close(its)


@pytest.mark.parametrize("imported", ["nproxy.cli", "click", "nproxy.cli.wrong_use"])
def test_control_c_during_the_imports_ends_as_during_a_command(imported: str) -> None:
    argv = [sys.executable, "-c", INTERRUPTED, imported]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\nnproxy: stopped\n")
