"""The server's end of the channel, before a core that the test plays: what it owes, and how it ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from engine import channel
from engine.channel import CoreClient
from engine.config import EngineConfig
from engine.errors import CoreFailed
from engine.messages import Abort, Broken, FromCore, Stats, StepDone, pack
from tests.fakes.runner import ready


class Process:
    """A process that ends with a status when it is told to, or is killed."""

    pid = 0

    def __init__(self) -> None:
        self.status = asyncio.get_running_loop().create_future()

    async def wait(self) -> int:
        return int(await asyncio.shield(self.status))

    def kill(self) -> None:
        self.status.set_result(-9)


class Played:
    """A client, its core's process, and the core's end of the channel."""

    def __init__(self, client: CoreClient, process: Process, far: asyncio.StreamWriter) -> None:
        self.client, self.process, self.far = client, process, far

    async def step(self, taken: int, running: int = 0, waiting: int = 0) -> None:
        stats = Stats(running=running, waiting=waiting)
        self.far.write(pack(StepDone((), (), 0.1, 1, stats, taken=taken)))
        assert (await anext(self.client)).stats == stats


@pytest.fixture
async def played() -> AsyncIterator[Played]:
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=ours)
    _, far = await asyncio.open_connection(sock=theirs)
    process = Process()
    yield Played(CoreClient(cast(asyncio.subprocess.Process, process), reader, writer, EngineConfig("")), process, far)
    far.close()
    writer.close()


async def test_each_step_begins_the_time_anew_for_which_more_is_owed(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 5.0
    monkeypatch.setattr(channel, "time", SimpleNamespace(monotonic=lambda: now))
    client = played.client
    for group in range(2):
        client.abort(Abort(group))
    now += 3
    assert client.silence == 3
    await played.step(taken=1)  # it has yet to read the second message
    assert client.silence == 0
    now += 4
    assert client.silence == 4
    for number, state in enumerate(({"running": 1}, {"waiting": 1})):
        await played.step(taken=2, **state)
        now += 5 + number
        assert client.silence == 5 + number
    await played.step(taken=2)
    now += 6
    assert client.silence == 0


async def test_who_is_closed_is_sent_nothing_more_and_owes_nothing(played: Played) -> None:
    played.process.kill()
    await played.client.close()
    played.client.abort(Abort(1))
    assert played.client.silence == 0


async def test_a_core_that_does_not_end_by_itself_is_killed(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "_END_SECONDS", 0.01)
    await played.client.close()
    assert await played.process.wait() == -9


@pytest.mark.parametrize(
    ("status", "how"),
    [
        (0, "ended with status 0"),
        (3, "ended with status 3"),
        (-9, "was ended by signal 9, as Linux ends a process when memory runs out"),
        (-11, "was ended by signal 11"),
    ],
)
@pytest.mark.parametrize("left", ["nothing", "half a message", "what it has not read"])
async def test_how_the_core_has_ended_is_told(played: Played, status: int, how: str, left: str) -> None:
    if left == "half a message":
        played.far.write(pack(Broken("It ends."))[:-1])
    elif left == "what it has not read":  # the connection is reset then
        cast(asyncio.Transport, played.far.transport).pause_reading()
        played.client.abort(Abort(1))
    played.far.close()
    played.process.status.set_result(status)
    with pytest.raises(CoreFailed, match=f"^the engine core {how}$"):
        await anext(played.client)


@pytest.mark.parametrize(
    ("message", "said"),
    [(Broken("No memory is left."), "^No memory is left.$"), (ready(), "the engine core sent Ready")],
)
async def test_what_is_no_step_ends_the_iteration(played: Played, message: FromCore, said: str) -> None:
    played.far.write(pack(message))
    with pytest.raises(CoreFailed, match=said):
        await anext(played.client)


async def test_what_is_printed_goes_to_the_log_and_the_working_folder_is_not_imported_from(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "pickle.py").write_text("raise RuntimeError('imported')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CoreFailed, match="'NoneType' object has no attribute 'ready'"):  # what print returns
        await CoreClient.start(EngineConfig("printed"), "builtins:print")
    said = capfd.readouterr()
    assert said.out == ""
    assert "EngineConfig(model='printed'" in said.err
