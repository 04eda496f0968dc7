"""The folder of the engine's socket: nobody else's, and gone with its process however that ends."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from nproxy.cli.private_folder import PREFIX, private_folder

KILLED = """
import os, signal, sys
from pathlib import Path
from nproxy.cli.private_folder import private_folder
with private_folder(Path(sys.argv[1])) as folder:
    (folder / "engine.sock").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_it_is_private_and_removed_with_all_that_is_in_it(tmp_path: Path) -> None:
    with private_folder(tmp_path) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "engine.sock").touch()
    assert not [*tmp_path.iterdir()]


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    (left,) = tmp_path.iterdir()
    with private_folder(tmp_path) as folder:
        assert [*tmp_path.iterdir()] == [folder] and folder != left


def test_what_is_in_use_stays(tmp_path: Path) -> None:
    with private_folder(tmp_path) as one, private_folder(tmp_path) as other:
        assert {one, other} == {*tmp_path.iterdir()}


def test_what_belongs_to_another_user_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{PREFIX}other").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with private_folder(tmp_path):
        assert (tmp_path / f"{PREFIX}other").exists()


def test_no_lock_is_held_afterwards(tmp_path: Path) -> None:
    before = psutil.Process().num_fds()
    with private_folder(tmp_path):
        (tmp_path / f"{PREFIX}left").mkdir()
    with private_folder(tmp_path):
        pass
    assert psutil.Process().num_fds() == before


def test_what_a_link_leads_to_stays(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (tmp_path / f"{PREFIX}link").symlink_to(kept)
    with private_folder(tmp_path):
        pass
    assert kept.exists()


@pytest.mark.parametrize("moment", ["before it is opened", "before it is locked"])
def test_one_that_is_taken_for_left_gives_way_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    made: list[Path] = []
    make, lock = tempfile.mkdtemp, fcntl.flock

    def lose_the_first() -> None:
        if len(made) == 1:
            made[0].rmdir()

    def make_and_lose(**_: object) -> str:
        made.append(Path(make(prefix=PREFIX, dir=tmp_path)))
        if moment == "before it is opened":
            lose_the_first()
        return str(made[-1])

    def lose_and_lock(descriptor: int, how: int) -> None:
        if moment == "before it is locked":
            lose_the_first()
        lock(descriptor, how)

    monkeypatch.setattr(tempfile, "mkdtemp", make_and_lose)
    monkeypatch.setattr(fcntl, "flock", lose_and_lock)
    with private_folder(tmp_path) as folder:
        assert folder == made[1] and folder.exists()
