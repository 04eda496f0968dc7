"""The parent's view of a worker: one process, from its start to its end."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Literal

from nproxy.concurrency.tasks import within
from nproxy.telemetry.sums import Report
from nproxy.workers.channel import Channel, ChannelClosed, connect
from nproxy.workers.endings import how_it_ended
from nproxy.workers.messages import Beat, Drain, Json, Message, Question, Ready, Start
from nproxy.workers.reports import Reported

TICK_SECONDS, SILENT_TICKS = 2.0, 15
"""A worker that sends nothing for so many ticks counts as hanging. Ticks are counted instead of seconds, so that a
pause of the whole machine does not count."""
END_SECONDS = 5.0
"""How long a process may live on after it has closed its channel, or after its time to drain is over."""

_STANDARD_ERROR = 2

log = logging.getLogger("nproxy.workers")


class Worker:
    """One worker.

    index: its slot.
    name: unique among all workers, also past ones.
    pid, version: None until known.
    state: starting until it accepts connections; leaving once it was told to end.
    began: when it was created, in the loop's time.
    ready: set when it accepts connections.
    ended: set when the process is gone and was waited for.
    how: how it ended, in words.
    """

    def __init__(self, index: int, name: str, hear: Callable[[Worker, Message], None]) -> None:
        """hear: called with every message except beats."""
        self.index = index
        self.name = name
        self.pid: int | None = None
        self.version: str | None = None
        self.state: Literal["starting", "serving", "leaving"] = "starting"
        self.began = asyncio.get_running_loop().time()
        self.ready, self.ended = asyncio.Event(), asyncio.Event()
        self.how = "could not be started"
        self._hear = hear
        self._channel: Channel | None = None
        self._reported = Reported()
        self._end_by: float | None = None

    async def live(self, listener: socket.socket, start: Callable[[], Start]) -> None:
        """Run a process on a listening socket until it has ended, for whatever reason.

        start: returns the first message. It is called only when the channel exists, so that the message is up to date.
        """
        try:
            async with self._process(listener) as (process, channel):
                if self._end_by is not None:  # `drain` was called before the channel existed
                    return
                channel.send(start())
                async with asyncio.TaskGroup() as beside:
                    listening = beside.create_task(self._listen(channel))
                    self.how = await self._watch(process, channel)
                    channel.abort()
                    await listening
        except OSError as error:
            log.error("a worker cannot be started: %s", error)  # noqa: TRY400 - the system's reason is the whole story
        finally:
            self.state = "leaving"
            self.ended.set()

    def send(self, message: Message) -> None:
        """Send a message to the worker. If it is gone, the message is dropped."""
        if self._channel is not None:
            self._channel.send(message)

    async def ask(self, what: Question, seconds: float) -> Json:
        """Ask the worker, and return its answer. Raises ChannelClosed, TimeoutError."""
        if self._channel is None:
            raise ChannelClosed
        return await self._channel.ask(what, seconds)

    def drain(self, how: Literal["end", "handover"], seconds: float) -> None:
        """Tell the worker to end within so many seconds. END_SECONDS later, it is killed."""
        self.state = "leaving"
        self._end_by = asyncio.get_running_loop().time() + seconds + END_SECONDS
        self.send(Drain(how, seconds))

    async def refresh(self, seconds: float) -> None:
        """Have it report its metrics within so many seconds. If it does not, its last report stands."""
        with suppress(ChannelClosed, TimeoutError):
            await self.ask("metrics", seconds)
        with suppress(RuntimeError):  # no thread can be started
            await self._reported.unpack()

    def report(self) -> Report:
        """Return its last reported metrics; empty if they are invalid."""
        return self._reported.report()

    @asynccontextmanager
    async def _process(self, listener: socket.socket) -> AsyncIterator[tuple[asyncio.subprocess.Process, Channel]]:
        """Start a fresh interpreter; yield its process and the channel to it. After the block, it is killed."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                # in its own session, so that Ctrl-C reaches only the parent, which then ends the workers
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", "nproxy.workers", str(listener.fileno()), str(theirs.fileno())),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=_STANDARD_ERROR,
                    pass_fds=(listener.fileno(), theirs.fileno()),
                    start_new_session=True,
                )
            except BaseException:
                ours.close()
                raise
        self.pid = process.pid
        try:
            self._channel = await connect(ours)
            self._channel.admission = partial(self._hear, self)
            yield process, self._channel
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            if self._channel is not None:
                self._channel.abort()
                self._channel.admission = None  # which refers to this worker

    async def _listen(self, channel: Channel) -> None:
        async for message in channel.messages():
            match message:
                case Ready(version=version):
                    self.version = version
                    if self.state == "starting":
                        self.state = "serving"
                    self.ready.set()
                    self._hear(self, message)
                case Beat(metrics=metrics):
                    if metrics is not None:
                        self._reported.take(metrics)
                case _:
                    self._hear(self, message)

    async def _watch(self, process: asyncio.subprocess.Process, channel: Channel) -> str:
        """Wait until the process has ended or must be killed. Returns how it ended, in words."""
        silent, heard = 0, 0
        while not await within(TICK_SECONDS, channel.closed()):
            silent = silent + 1 if channel.heard == heard else 0
            heard = channel.heard
            if silent >= SILENT_TICKS:
                return "hangs"
            if self._end_by is not None and asyncio.get_running_loop().time() > self._end_by:
                return "did not exit in time"
        if not await within(END_SECONDS, process.wait()):
            return "closed its channel but did not exit"
        return how_it_ended(process.returncode)
