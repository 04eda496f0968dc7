"""A gateway in huge pages: what moves there stays the same, and what the system refuses stays where it is.

Other processes move, not that of the tests.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from nproxy.gateway import huge_pages
from nproxy.gateway.huge_pages import Moved
from tests.real.metrics import wait_for
from tests.real.processes import nproxy

MIB = 1 << 20
X86 = platform.machine() == "x86_64"  # the only processors whose code is moved

BEGIN = """
import ctypes, gc, json, mmap, struct, sys, threading
import nproxy.cli.serving
from nproxy.gateway import huge_pages
if not huge_pages.SETTINGS.exists() or "[never]" in (huge_pages.SETTINGS / "enabled").read_text():
    sys.exit(77)
libc = huge_pages._libc()
size = int((huge_pages.SETTINGS / "hpage_pmd_size").read_text())
probe = libc.mmap(None, 2 * size, 3, 0x22, -1, 0)
ctypes.memset(probe, 1, 2 * size)
if libc.madvise(-(-probe // size) * size, size, 25) != 0:
    sys.exit(77)
"""

STILL_WORKS = """
def works():
    value = {"a": [{"b": str(number), "c": number / 7} for number in range(2000)]}
    assert json.loads(json.dumps(value)) == value
    try:
        json.loads("{")
    except ValueError:
        pass
    several = [threading.Thread(target=gc.collect) for _ in range(4)]
    for thread in several:
        thread.start()
    for thread in several:
        thread.join()
works()
"""

MOVES = f"""{BEGIN}{STILL_WORKS}
moved = huge_pages.move("all")
works()
again = huge_pages.move("all")
works()
print(json.dumps([moved.objects, moved.code, again.code]))
"""

HARDENED = f"""{BEGIN}{STILL_WORKS}
PR_SET_MDWE, REFUSE_EXEC_GAIN = 65, 1
if libc.prctl(PR_SET_MDWE, REFUSE_EXEC_GAIN, 0, 0, 0) != 0:
    sys.exit(77)
mappings = len(list(huge_pages._mappings()))
moved = huge_pages.move("all")
works()
print(json.dumps([moved.objects, moved.code, len(list(huge_pages._mappings())) - mappings]))
"""

SERVICE = f"""{BEGIN}{STILL_WORKS}
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, FILTER = 38, 22, 2
KILL, ALLOW = 0x80000000, 0x7FFF0000
steps = [(0x20, 0, 0, 0)]  # load the call's number
for number in (27, 149, 151, 440):  # mincore, mlock, mlockall, process_madvise
    steps += [(0x15, 0, 1, number), (0x06, 0, 0, KILL)]
steps.append((0x06, 0, 0, ALLOW))
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code)))
if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, FILTER, program, 0, 0):
    sys.exit(77)
moved = huge_pages.move("all")
works()
print(json.dumps([moved.objects, moved.code]))
"""

EMPTY = f"""{BEGIN}
big = mmap.mmap(-1, 128 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
big[64 << 20 : 96 << 20] = bytes(32 << 20)
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * mmap.PAGESIZE
before = resident()
moved = huge_pages.move("objects")
print(json.dumps([moved.objects, moved.code, resident() - before]))
"""


def ran(program: str) -> Any:
    done = subprocess.run([sys.executable, "-c", program], timeout=120, check=False, capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip("the system gives no huge pages")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_objects_and_code_move_and_work_as_before() -> None:
    objects, code, again = ran(MOVES)
    assert objects >= 8 * MIB
    assert code >= 2 * MIB * X86
    assert again == code, "it may be told twice"


def test_a_system_that_lets_nothing_written_be_executed_keeps_the_code_where_it_is() -> None:
    """As systemd's MemoryDenyWriteExecute and SELinux do."""
    objects, code, mappings = ran(HARDENED)
    assert (objects > 0, code) == (True, 0)
    assert mappings < 8, "the copy is gone"


@pytest.mark.skipif(not X86, reason="the numbers of system calls are those of x86-64")
def test_a_service_that_may_make_few_system_calls_goes_on() -> None:
    """As with systemd's `SystemCallFilter=@system-service`, which kills for any other."""
    objects, code = ran(SERVICE)
    assert (objects > 0, code > 0) == (True, True)


def test_memory_that_nobody_has_used_takes_no_room_and_is_in_no_ones_way() -> None:
    objects, code, more = ran(EMPTY)
    assert (objects >= 32 * MIB, code) == (True, 0)
    assert more < 12 * MIB


@pytest.mark.parametrize("enabled", ["always madvise [never]", None])
def test_a_system_without_huge_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, enabled: str | None) -> None:
    monkeypatch.setattr(huge_pages, "SETTINGS", tmp_path)
    monkeypatch.setattr(huge_pages, "_libc", lambda: pytest.fail("something is moved"))
    if enabled is not None:
        (tmp_path / "enabled").write_text(enabled, encoding="ascii")
        (tmp_path / "hpage_pmd_size").write_text("2097152", encoding="ascii")
    assert huge_pages.move("all") == Moved()


def test_a_kernel_that_does_not_know_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "SETTINGS", tmp_path)
    (tmp_path / "enabled").write_text("always [madvise] never", encoding="ascii")
    (tmp_path / "hpage_pmd_size").write_text("2097152", encoding="ascii")
    monkeypatch.setattr(huge_pages, "_COLLAPSE", 9999)
    assert huge_pages.move("all") == Moved()


def test_nothing_is_asked_of_the_system_if_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "_mappings", lambda: pytest.fail("something is moved"))
    assert huge_pages.move("none") == Moved()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("wanted", "objects", "code"), [("none", 0, 0), ("objects", 1, 0), ("all", 1, X86)])
def test_a_gateway_moves_as_its_settings_say(
    tmp_path: Path, wanted: str, objects: int, code: int, workers: int
) -> None:
    if objects:
        ran(f"{BEGIN}\nprint(1)")  # or the test is skipped
    settings = {
        "listen": {"huge_pages": wanted, "workers": workers},
        "upstreams": [{"name": "fake", "replicas": ["http://127.0.0.1:9/v1"]}],
    }
    (tmp_path / "nproxy.yaml").write_text(json.dumps(settings), encoding="utf-8")
    with nproxy("--config", str(tmp_path / "nproxy.yaml"), log=tmp_path / "log", ready="/health") as gateway:
        serving = gateway.children() if workers > 1 else gateway.family()
        assert len(serving) == workers
        for process in serving:
            wait_for(lambda: moved_in(process) == (objects, code), seconds=30, what=f"{wanted} in huge pages")  # noqa: B023


def moved_in(process: psutil.Process) -> tuple[bool, bool]:
    """Whether a process's objects and code lie in huge pages."""
    return huge(process, "rw-p") >= 8 * MIB, huge(process, "r-xp") >= 2 * MIB


def huge(process: psutil.Process, allows: str) -> int:
    """Return how many bytes of a process's mappings with these permissions lie in huge pages."""
    told = Path(f"/proc/{process.pid}/smaps").read_text(encoding="utf-8", errors="replace")
    found = re.findall(
        rf"^[0-9a-f]+-[0-9a-f]+ {allows} .*\n(?:[A-Z].*\n)*?AnonHugePages: +(\d+) kB", told, re.MULTILINE
    )
    return sum(map(int, found)) * 1024
