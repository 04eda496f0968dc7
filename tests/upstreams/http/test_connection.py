"""One connection over a transport that is told what happens to it."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Iterator

import pytest

from nproxy.upstreams.http.connection import Connection
from nproxy.upstreams.http.errors import HTTPError, LostError, UploadError
from nproxy.upstreams.http.sending import SLICE_BYTES, Upload
from nproxy.upstreams.watchdog import Watchdogs
from tests.upstreams.http.asking import OK, pieces

LONG = (b"x" * (SLICE_BYTES + 1),)
HEAD = b"POST / HTTP/1.1\r\n\r\n"


class Transport(asyncio.Transport):
    """Takes `takes` writes before its buffer is full."""

    def __init__(self, sock: socket.socket, takes: int = 100) -> None:
        super().__init__({"socket": sock})
        self.connection: Connection | None = None
        self.ended = ""
        self._takes = takes

    def write(self, data: object) -> None:
        self._takes -= 1
        if self.connection is not None and not self._takes:
            self.connection.pause_writing()

    def is_closing(self) -> bool:
        return bool(self.ended)

    def close(self) -> None:
        self.ended = "closed"

    def abort(self) -> None:
        self.ended = "aborted"

    def get_write_buffer_size(self) -> int:
        return 0 if self._takes > 0 else 1


class Scene:
    """A connection, and what it has told: kept for another call, lost, holds a second file."""

    def __init__(self, sock: socket.socket) -> None:
        self.kept: list[Connection] = []
        self.doubled: set[Connection] = set()
        self._sock = sock

    def open(self, takes: int = 100) -> tuple[Connection, Transport]:
        connection = Connection(
            Watchdogs(asyncio.get_running_loop()), self.kept.append, lambda _: None, self.doubled, lambda: True
        )
        transport = Transport(self._sock, takes)
        transport.connection = connection
        connection.connection_made(transport)
        return connection, transport


@pytest.fixture
def scene() -> Iterator[Scene]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        yield Scene(ours)


async def test_a_second_file_is_held_only_while_a_long_body_is_sent(scene: Scene) -> None:
    connection, _ = scene.open()
    reply = connection.send("POST", HEAD, LONG)
    assert scene.doubled == {connection}
    connection.data_received(OK)
    assert (scene.kept, scene.doubled) == ([connection], set())
    reply.close()


async def test_nothing_to_read_when_writing_has_failed_is_a_failed_call(scene: Scene) -> None:
    connection, _ = scene.open()
    reply = connection.send("POST", HEAD, LONG)
    connection.connection_lost(BrokenPipeError(errno.EPIPE, "Broken pipe"))
    with pytest.raises(LostError) as lost:
        await reply.begun()
    assert isinstance(lost.value.cause, BrokenPipeError)
    assert not scene.doubled
    reply.close()


async def test_a_long_body_is_sent_although_no_second_file_can_be_opened(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "dup", full)
    connection, _ = scene.open()
    reply = connection.send("POST", HEAD, LONG)
    connection.data_received(OK)
    assert (scene.kept, scene.doubled) == ([connection], set())
    reply.close()


async def test_no_call_waits_behind_the_rest_of_a_body_that_its_server_does_not_take(scene: Scene) -> None:
    """All is handed to the transport when the answer comes, but the transport's buffer is full."""
    connection, transport = scene.open(takes=3)  # the head and two slices
    reply = connection.send("POST", HEAD, LONG)
    connection.data_received(OK)
    assert (scene.kept, transport.ended) == ([], "aborted")
    assert await reply.read() == b"ok"
    reply.close()


@pytest.mark.parametrize(("error", "stale"), [(LostError(), True), (UploadError(), False)])
async def test_a_kept_connection_is_not_stale_because_a_client_broke_off(
    scene: Scene, error: HTTPError, stale: bool
) -> None:
    connection, _ = scene.open()
    first = connection.send("POST", HEAD, ())
    connection.data_received(OK)
    first.close()
    second = connection.send("POST", HEAD, Upload(pieces(), None))
    second.fail(error)
    assert second.stale is stale
    second.close()


async def test_nothing_more_of_a_body_is_taken_once_the_call_is_over(scene: Scene) -> None:
    connection, _ = scene.open()
    reply = connection.send("POST", HEAD, Upload(pieces(), None))
    reply.close()
    with pytest.raises(LostError):
        await reply.writable()
