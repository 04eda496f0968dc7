"""Commands whose standard streams are closed, full, or know no UTF-8, and commands that are stopped."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nproxy.cli.chat.columns import shown
from tests.fakes.terminal import CONTROL_C, Terminal, nproxy, terminal
from tests.fakes.upstream import Behaviour, FakeUpstream, raw_server

REFUSED = "nproxy: http://127.0.0.1:1/v1 cannot be reached: connection refused"


def run(shell: str) -> subprocess.CompletedProcess[str]:
    """Have a shell run this; `nproxy` is that of these tests."""
    script = f'nproxy() {{ "{sys.executable}" -m nproxy "$@"; }}; {shell}'
    return subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    "words", ["--help", "--version", "config-schema", "keys new a", "models list --json", "completion bash"]
)
def test_a_full_disk_is_told_in_one_line(words: str) -> None:
    done = run(f"nproxy {words} > /dev/full")
    assert (done.returncode, done.stderr) == (1, "nproxy: the output cannot be written: no space left on device\n")


def test_a_full_disk_is_not_taken_for_that_of_the_dashboards(tmp_path: Path) -> None:
    done = run(f"nproxy dashboards export '{tmp_path}' > /dev/full")
    assert (done.returncode, done.stderr) == (1, "nproxy: the output cannot be written: no space left on device\n")


@pytest.mark.parametrize("words", ["config-schema", "dashboards export '{folder}'"])
def test_a_reader_that_has_left_is_not_told_of(words: str, tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        argv = [sys.executable, "-m", "nproxy", *shlex.split(words.format(folder=tmp_path))]
        done = subprocess.run(argv, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


def test_closed_streams_are_as_good_as_the_null_device() -> None:
    done = run("nproxy chat --url http://127.0.0.1:1 <&-")
    assert (done.returncode, done.stderr) == (2, "nproxy: the prompt is empty\n")
    done = run("nproxy chat --url http://127.0.0.1:1 hi >&-")
    assert (done.returncode, done.stderr) == (
        1,
        "nproxy: http://127.0.0.1:1/v1 cannot be reached: connection refused\n",
    )
    assert run("nproxy chat --url http://127.0.0.1:1 hi 2>&-").returncode == 1
    assert run("nproxy config-schema >&-").returncode == 0


def test_children_have_them_too() -> None:
    """An engine child whose standard error is closed writes its log into one of its sockets."""
    code = """
import os
from nproxy.cli.standard_streams import make_fit
make_fit()
os._exit(os.waitstatus_to_exitcode(os.system("true >&0 && true <&1 && true >&2")))
"""
    for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
        assert run(f"'{sys.executable}' -c '{code}' {closed}").returncode == 0


async def chat(text: str, **environ: Any) -> Terminal:
    """The terminal after `nproxy chat` got such an answer."""
    said = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": "stop"}]}
    body = f"data: {json.dumps(said)}\n\ndata: [DONE]\n\n"
    head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.read(1)  # of its body
        writer.write((head + body).encode())
        await writer.drain()

    async with raw_server(answer) as url:
        words = ("chat", "--url", url, "-n", "1", "--model", "m", "hi")
        async with terminal(*nproxy(*words), **environ) as screen:
            assert await screen.ended() == 0
            await screen.until("stop, ")
            return screen


async def test_half_a_surrogate_pair_is_a_question_mark() -> None:
    assert "one ? two" in (await chat("one \ud800 two")).text


async def test_a_terminal_without_utf_8_gets_question_marks_and_plain_frames() -> None:
    text = (await chat("one 漢 two", PYTHONIOENCODING="ascii")).text
    assert "| one ? two" in text
    assert "Traceback" not in text


def test_what_turns_all_that_follows_around_is_left_out() -> None:
    assert shown("a\u202eb\u2066c\u2069") == "abc"
    assert shown("a\u2028b\u2029c\nd\te") == "a\nb\nc\nd    e"
    assert shown("👨‍👩‍👧 שלום") == "👨‍👩‍👧 שלום"  # joiners stay, and what is written from right to left


@pytest.mark.parametrize("words", [("chat", "hi", "--url"), ("probe",), ("bench",)])
async def test_control_c_before_anything_came(words: tuple[str, ...]) -> None:
    asked = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read()  # until the other side has left

    async with raw_server(silent) as url, terminal(*nproxy(*words, url)) as screen:
        async with asyncio.timeout(60):
            await asked.wait()
        screen.type(CONTROL_C)
        assert await screen.ended() == 130
        await screen.until("nproxy: stopped")
        assert "Traceback" not in screen.text


async def test_an_answer_that_was_stopped_is_130() -> None:
    async with FakeUpstream(Behaviour(hold_after=3)) as upstream:
        words = ("chat", "--url", upstream.url, "-n", "1", "--seed", "1", "hi")
        async with terminal(*nproxy(*words)) as screen:
            await screen.until("seed 1")
            screen.type(CONTROL_C)
            assert await screen.ended() == 130
            await screen.until("stopped, ")
