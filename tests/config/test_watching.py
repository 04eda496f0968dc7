"""Files that are looked at now and then: what counts as a change, and when it is told."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from nproxy.config import watching
from nproxy.config.watching import Watch, digest


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "nproxy.yaml"
    file.write_text("one")
    return file


def settled(*files: Path) -> Watch:
    """A watch that has seen all there is to see."""
    watch = Watch({file: digest(file) for file in files})
    assert not watch.look()
    assert not watch.look()
    return watch


def changed(watch: Watch, looks: int = 2) -> list[bool]:
    return [watch.look() for _ in range(looks)]


def test_nothing_happened(file: Path) -> None:
    assert changed(settled(file), 3) == [False] * 3


def test_a_change_is_told_once_when_the_file_is_still(file: Path) -> None:
    watch = settled(file)
    file.write_text("two")
    assert changed(watch, 3) == [False, True, False]


def test_a_file_that_is_being_written_is_waited_for(file: Path) -> None:
    watch = settled(file)
    with file.open("w") as half:
        half.write("tw")
        half.flush()
        assert not watch.look()
        half.write("o!")
        half.flush()
        assert not watch.look()
    assert watch.look()


def test_a_file_that_stays_the_same_is_not_read(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = settled(file)
    monkeypatch.setattr(watching, "_digest", lambda _: pytest.fail("its content was read"))
    assert changed(watch, 3) == [False] * 3


def test_a_touch_is_no_change(file: Path) -> None:
    watch = settled(file)
    os.utime(file, (1, 1))
    assert changed(watch) == [False, False]


def test_the_same_content_in_a_new_file_is_no_change(file: Path) -> None:
    watch = settled(file)
    other = file.with_suffix(".new")
    other.write_text("one")
    other.rename(file)
    assert changed(watch) == [False, False]


def test_an_editor_puts_a_new_file_under_the_old_name(file: Path) -> None:
    watch = settled(file)
    other = file.with_suffix(".swp")
    other.write_text("two")
    file.unlink()
    other.rename(file)
    assert changed(watch) == [False, True]


def test_a_change_that_keeps_size_and_time(file: Path) -> None:
    watch, before = settled(file), file.stat()
    file.write_text("two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert changed(watch) == [False, True]


def test_a_link_is_swapped_above_the_file(tmp_path: Path) -> None:
    """As Kubernetes does with a ConfigMap: nproxy.yaml -> ..data/nproxy.yaml, ..data -> ..2026_1."""
    for folder, text in (("..2026_1", "one"), ("..2026_2", "two")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "nproxy.yaml").write_text(text)
    (tmp_path / "..data").symlink_to("..2026_1")
    (tmp_path / "nproxy.yaml").symlink_to("..data/nproxy.yaml")
    watch = settled(tmp_path / "nproxy.yaml")
    (tmp_path / "..data_tmp").symlink_to("..2026_2")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    assert changed(watch) == [False, True]


def test_a_file_goes_and_comes_back(file: Path) -> None:
    watch = settled(file)
    file.unlink()
    assert changed(watch) == [False, True]
    file.write_text("one")
    assert changed(watch) == [False, True]


def test_a_short_absence_is_none(file: Path) -> None:
    watch = settled(file)
    file.unlink()
    assert not watch.look()
    file.write_text("one")
    assert changed(watch) == [False, False]


def test_a_change_before_the_first_look_is_seen(file: Path) -> None:
    watch = Watch({file: digest(file)})
    file.write_text("two")
    assert changed(watch) == [False, True]


def test_a_pipe_is_never_read_again(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert digest(pipe) is None
    assert changed(settled(pipe)) == [False, False]


def test_any_of_several_files(file: Path) -> None:
    other = file.with_name("key")
    watch = settled(file, other)
    other.write_text("a key")
    assert changed(watch) == [False, True]


@pytest.mark.parametrize("shortage", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_change_that_cannot_be_read_for_a_while_is_told_later(
    file: Path, monkeypatch: pytest.MonkeyPatch, shortage: int
) -> None:
    """The process may have no file left to open; of what cannot be read nothing is known."""
    watch = settled(file)

    def none_left(path: Path) -> bytes:
        raise OSError(shortage, os.strerror(shortage))

    with monkeypatch.context() as short:
        short.setattr(Path, "read_bytes", none_left)
        file.write_text("two")
        assert changed(watch, 4) == [False] * 4
    assert changed(watch) == [True, False]


def test_what_was_read_when_it_could_not_be_is_read_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings were refused because their file could not be opened: that is over without a change of the file."""
    with monkeypatch.context() as short:
        short.setattr(Path, "read_bytes", lambda path: (_ for _ in ()).throw(OSError(errno.EMFILE, "too many")))
        watch = Watch({file: digest(file)})
        assert changed(watch, 3) == [False] * 3
    assert changed(watch) == [True, False]


def test_a_file_that_may_not_be_read_any_more_is_a_change(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = settled(file)
    file.write_text("two")
    monkeypatch.setattr(Path, "read_bytes", lambda path: (_ for _ in ()).throw(PermissionError(errno.EACCES, "no")))
    assert changed(watch) == [False, True]
