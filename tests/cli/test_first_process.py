"""What a container's first process does for the other ones, and for whoever stops the container.

These are other processes, which only believe that they are the first.
"""

from __future__ import annotations

import subprocess
import sys

TOLD_TO_END_AT_ITS_START = """
import os, signal
own = os.getpid()
os.getpid = lambda: 1
from nproxy.cli import main
from nproxy.config import Source

def read(_):
    os.kill(own, signal.SIGTERM)
    signal.pause()

Source.read = read
main(["serve"])
"""

INHERITS = """
import ctypes, os, threading, time
from nproxy.cli.first_process import reap

PR_SET_CHILD_SUBREAPER = 36
assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
for _ in range(3):
    if os.fork() == 0:
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
    os.wait()
waits = os.spawnlp(os.P_NOWAIT, "true", "true")
threading.Thread(target=reap, args=(0.1,), daemon=True).start()
os.waitpid(waits, 0)
while True:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        break
    time.sleep(0.01)
"""


def ended(program: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", program]
    return subprocess.run(argv, timeout=60, check=False, capture_output=True, text=True)


def test_it_ends_at_sigterm_before_it_serves() -> None:
    done = ended(TOLD_TO_END_AT_ITS_START)
    assert (done.returncode, done.stderr) == (143, "")


def test_it_waits_for_the_processes_that_it_inherits() -> None:
    assert ended(INHERITS).returncode == 0
