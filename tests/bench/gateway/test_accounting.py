"""The kernel's accounts of real processes."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

from bench.gateway.accounting import cores, cpu_seconds, family, on_core, peak_mib, peak_of

SPIN = """
import os, sys, threading, time
def spin():
    while time.thread_time() < 0.2: pass
thread = threading.Thread(target=spin)
thread.start()
thread.join()
child = os.fork()
block = bytearray(64 << 20) if not child else b""
if child: print(child, flush=True)
else: print("there", flush=True)
sys.stdin.read(1)
"""


def test_a_family_that_has_spun_and_filled_memory() -> None:
    with subprocess.Popen([sys.executable, "-c", SPIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdin is not None
        lines = {process.stdout.readline() for _ in range(2)}
        [child] = [int(line) for line in lines if line != b"there\n"]
        try:
            pids = family(process.pid)
            assert pids == [process.pid, child]
            # a thread that has ended counts for its process
            assert 0.2 <= cpu_seconds([process.pid]) < 5.0
            assert cpu_seconds(pids) > cpu_seconds([process.pid])
            assert peak_mib([child]) >= 64 + peak_mib([process.pid]) / 2
            assert peak_mib(pids) == pytest.approx(peak_mib([process.pid]) + peak_mib([child]))
        finally:
            process.stdin.write(b"xx")
            process.stdin.close()


def test_its_own_clock_agrees_with_getrusage() -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    assert cpu_seconds([os.getpid()]) == pytest.approx(used.ru_utime + used.ru_stime, abs=0.05)


def test_who_is_gone_counts_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    assert (cpu_seconds([gone.pid]), peak_mib([gone.pid])) == (0.0, 0.0)


def test_a_status_without_memory() -> None:
    assert peak_of("Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t  10 kB\n") == 2048
    assert peak_of("Name:\tkernel thread\n") == 0


def test_what_is_started_on_a_core_stays_there() -> None:
    before = os.sched_getaffinity(0)
    core = cores()[1]
    with on_core(core):
        told = subprocess.run([sys.executable, "-c", "import os; print(os.sched_getaffinity(0))"], capture_output=True)
    assert told.stdout.decode().strip() == str({core})
    assert os.sched_getaffinity(0) == before
