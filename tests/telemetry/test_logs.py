"""Log lines: one record, one line; and a stream that takes none stops nobody."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from select import PIPE_BUF
from typing import Literal

import pytest

from nproxy.telemetry import line_writer, logs
from nproxy.telemetry.line_writer import LineWriter


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(line_writer, "FLUSH_SECONDS", 60.0)  # a thread may get its turn late
    yield
    for name in ("nproxy", "aiohttp"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True


class Log:
    """A file that is logged to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.fd = os.open(path, os.O_CREAT | os.O_WRONLY)

    def lines(self) -> list[str]:
        for handler in logging.getLogger("nproxy").handlers:
            handler.flush()
        return self._path.read_text().splitlines()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = Log(tmp_path / "log")
    yield log
    os.close(log.fd)


def test_json_lines(log: Log) -> None:
    logs.configure("info", "json", log.fd)
    logs.access.info("a\nb", extra={"fields": {"code": 200}})
    logs.access.debug("not this")
    (line,) = log.lines()
    record = json.loads(line)
    assert (record["message"], record["code"], record["level"]) == ("a\nb", 200, "info")
    assert record["time"].endswith("Z")


def test_text_lines_and_errors(log: Log) -> None:
    logs.configure("debug", "text", log.fd)
    try:
        dict[str, str]()["why"]
    except KeyError:
        logging.getLogger("nproxy.x").exception("broke", extra={"fields": {"a": 1}})
    first, *rest = log.lines()
    assert first.endswith("broke a=1")
    assert rest[-1] == "KeyError: 'why'"


@pytest.mark.parametrize("form", ["json", "text"])
def test_what_is_no_text_is_a_line_too(log: Log, form: Literal["json", "text"]) -> None:
    logs.configure("info", form, log.fd)
    logs.access.info("x", extra={"fields": {"path": "/\udcff", "said": ["\ud83d", 10**30]}})
    (line,) = log.lines()
    assert "/\\udcff" in line and "\\ud83d" in line and str(10**30) in line


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize("odd", ["\x1b[2K", "\x9b2K", "\x7f", "\u2028", "\u202e", "\u200b"])
def test_what_a_terminal_would_obey_is_escaped(log: Log, form: Literal["json", "text"], odd: str) -> None:
    """A path is words of a client: it erases no line, and turns none around."""
    logs.configure("info", form, log.fd)
    logs.access.info("x", extra={"fields": {"path": f"/{odd}", "said": [odd], "plain": "\u00e4\u4e00"}})
    (line,) = log.lines()
    assert line.isprintable() and json.dumps(f"/{odd}") in line and json.dumps(odd) in line
    if form == "json":
        assert json.loads(line)["said"] == [odd]
    else:
        assert "plain=\u00e4\u4e00" in line


def test_configured_twice_writes_once(log: Log) -> None:
    logs.configure("info", "json", log.fd)
    logs.configure("info", "json", log.fd)
    logs.access.info("once")
    assert len(log.lines()) == 1


def test_another_form_from_now_on(log: Log) -> None:
    logs.configure("info", "json", log.fd)
    logs.access.info("one")
    logs.reformat("text")
    logs.access.info("two")
    first, second = log.lines()
    assert json.loads(first)["message"] == "one"
    assert second.endswith("info    two")


def test_lines_for_who_started_it_keep_their_place(log: Log) -> None:
    logs.configure("info", "text", log.fd)
    logs.access.info("before")
    logs.say("nproxy listens\ntry: curl")
    logs.access.info("behind")
    before, *said, behind = log.lines()
    assert (before[-6:], said, behind[-6:]) == ("before", ["nproxy listens", "try: curl"], "behind")


def test_nothing_is_lost_and_all_is_in_order(log: Log) -> None:
    logs.configure("info", "text", log.fd)
    for number in range(5000):
        logs.access.info("%d", number)
    assert [int(line.split()[-1]) for line in log.lines()] == list(range(5000))
    assert logs.dropped_lines() == 0


def record(text: str) -> logging.LogRecord:
    return logging.makeLogRecord({"msg": text})


def test_a_record_that_cannot_be_formatted_is_no_error_of_who_logs(
    log: Log, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = LineWriter(log.fd)
    writer.handle(logging.LogRecord("nproxy", logging.INFO, "", 0, "%d choices", ("no",), None))
    writer.handle(record("the next"))
    writer.flush()
    assert log.lines() == ["the next"]
    assert "Logging error" in capsys.readouterr().err


def test_long_lines_that_wait_take_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_writer, "MOST_LONG", 250_000)
    reader, fd = os.pipe()
    writer = LineWriter(fd)
    for number in range(20):
        writer.emit(record(f"{number} {'x' * 100_000}"))
    writer.emit(record("a short one"))
    assert 20 - 2 - 1 <= writer.dropped <= 20 - 2
    written, seen = 21 - writer.dropped, b""
    while seen.count(b"\n") < written:
        seen += os.read(reader, 1 << 16)
    assert seen.endswith(b"\na short one\n")
    writer.emit(record("y" * 100_000))
    assert os.read(reader, 1 << 16).startswith(b"y"), "there is room again"
    os.close(reader)
    writer.flush()  # before another test's file takes the descriptor's number, to which the rest would be written
    os.close(fd)


def test_a_full_pipe_that_nobody_reads_stops_nobody() -> None:
    """What waits is bounded, what does not fit is counted, and what waited comes when somebody reads."""
    reader, fd = os.pipe()
    writer = LineWriter(fd, most_lines=3)
    long = "x" * 70_000  # more than a pipe holds
    for number in range(20):
        writer.emit(record(f"{number} {long}"))
    assert 20 - 3 - 1 <= writer.dropped <= 20 - 3
    written = 20 - writer.dropped
    seen = b""
    while seen.count(b"\n") < written:
        seen += os.read(reader, 1 << 16)
    assert [line.split()[0] for line in seen.splitlines()][:3] == [b"0", b"1", b"2"]
    writer.emit(record("later"))
    assert os.read(reader, 100) == b"later\n"
    os.close(reader)
    os.close(fd)


def test_what_comes_at_once_is_written_together_as_far_as_a_pipe_takes_it_whole() -> None:
    reader, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # a message is what was one write
    writer = LineWriter(other.fileno())
    lines = [f"{number} {'x' * 400}" for number in range(100)]
    lines[50] = "50 " + "y" * 2 * PIPE_BUF
    for line in lines:
        writer.emit(record(line))
    writer.flush()
    writes = [reader.recv(1 << 16).decode() for _ in _until_empty(reader)]
    assert "".join(writes).splitlines() == lines
    assert len(writes) < 25, "ten lines fit into one write"
    assert all(write.endswith("\n") for write in writes)
    assert [write[:3] for write in writes if len(write) > PIPE_BUF] == ["50 "], "which is alone"
    reader.close()
    other.close()


def _until_empty(reader: socket.socket) -> Iterator[None]:
    while select.select([reader], [], [], 0)[0]:
        yield


def test_records_of_many_threads_are_all_written_whole(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        writer = LineWriter(file.fileno())
        names = [f"{letter}{number}" for letter in "abcd" for number in range(200)]
        parts = [names[start : start + 200] for start in range(0, 800, 200)]
        threads = [
            threading.Thread(target=lambda part=part: [writer.handle(record(name)) for name in part]) for part in parts
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        writer.flush()
    lines = (tmp_path / "log").read_text().splitlines()
    assert [[line for line in lines if line[0] == part[0][0]] for part in parts] == parts


def test_a_filter_is_asked() -> None:
    reader, fd = os.pipe()
    writer = LineWriter(fd)
    writer.addFilter(lambda record: record.getMessage() != "unwanted")
    told = [writer.handle(record(text)) for text in ("unwanted", "wanted")]
    writer.flush()
    assert (told, os.read(reader, 100)) == ([False, True], b"wanted\n")
    os.close(reader)
    os.close(fd)


def test_what_fails_together_is_counted_one_by_one() -> None:
    fd = os.open("/dev/full", os.O_WRONLY)
    writer = LineWriter(fd)
    for number in range(50):
        writer.emit(record(str(number)))
    writer.flush()
    assert writer.dropped == 50
    os.close(fd)


def test_a_pipe_that_is_closed() -> None:
    reader, fd = os.pipe()
    os.close(reader)
    writer = LineWriter(fd)
    writer.emit(record("a"))
    writer.emit(record("b"))
    writer.flush()
    assert writer.dropped == 2
    os.close(fd)


def test_a_disk_that_is_full() -> None:
    fd = os.open("/dev/full", os.O_WRONLY)
    writer = LineWriter(fd)
    writer.emit(record("a"))
    writer.flush()
    assert writer.dropped == 1
    os.close(fd)


def test_half_a_line_does_not_spoil_the_next() -> None:
    reader, fd = os.pipe()
    os.set_blocking(fd, False)
    writer = LineWriter(fd)
    writer.emit(record("x" * 1_000_000))
    writer.flush()
    assert writer.dropped == 1
    os.set_blocking(reader, False)
    with contextlib.suppress(BlockingIOError):
        while set(os.read(reader, 1 << 16)) == {ord("x")}:
            pass
    writer.emit(record("whole"))
    writer.flush()
    assert os.read(reader, 100) == b"\nwhole\n"
    os.close(reader)
    os.close(fd)


def test_flushing_into_a_full_pipe_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, fd = os.pipe()
    writer = LineWriter(fd, most_lines=1)
    writer.emit(record("x" * 1_000_000))
    with monkeypatch.context() as impatient:
        impatient.setattr(line_writer, "FLUSH_SECONDS", 0.05)
        writer.flush()  # waits for the thread, which waits for a reader
    os.close(reader)
    writer.flush()
    assert writer.dropped == 1
    os.close(fd)
