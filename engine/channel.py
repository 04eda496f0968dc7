"""The server's end of the channel to the core process. asyncio, no torch."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
import time
from typing import TypeVar

from engine.child_environment import child_environment
from engine.config import EngineConfig
from engine.errors import CoreFailed, CoreRefused
from engine.messages import HEADER, Abort, Add, Broken, Embed, Ready, Start, StepDone, ToCore, Vocabulary, pack, unpack

_LOADER = "engine.loading:load_runner"
_END_SECONDS = 5.0
_Expected = TypeVar("_Expected", Ready, StepDone)


class CoreClient:
    """The server's view of the core process: messages in, one StepDone per step out.

    Owned by one event loop; iterated by one task: `async for done in client`. The iteration ends after close(), and
    raises CoreFailed if the core has ended. `config`: the settings that it was started with. `ready`: what was loaded.
    `pid`: the process's id. `launched`: when it was started, in seconds of a monotonic clock.
    """

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        config: EngineConfig,
    ) -> None:
        self.config = config
        self.ready: Ready
        self.pid = process.pid
        self.launched = time.monotonic()
        self._process = process
        self._reader = reader
        self._writer = writer
        self._closed = False
        self._sent = 0
        self._owing_since: float | None = None

    @classmethod
    async def start(cls, config: EngineConfig, loader: str = _LOADER, tokenizer: str | None = None) -> CoreClient:
        """Launch the core process and wait until it is ready; see `launch` and `loaded`."""
        client = await cls.launch(config, loader)
        await client.loaded(tokenizer)
        return client

    @classmethod
    async def launch(cls, config: EngineConfig, loader: str = _LOADER) -> CoreClient:
        """Start the core process, which loads the model from now on; `loaded` or `close` must follow.

        loader: "module:name" of the function that makes the runner, imported in the core process only.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            # The channel is opened before the process starts, because closing the channel ends the process.
            reader, writer = await asyncio.open_connection(sock=ours)
            try:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-m", "engine.worker", str(theirs.fileno())),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=2,  # what a library prints goes to the log, not to the server's output
                    pass_fds=(theirs.fileno(),),
                    env=child_environment(),
                )
            except BaseException:
                writer.close()
                raise
        writer.write(pack(Start(config, loader)))
        return cls(process, reader, writer, config)

    async def loaded(self, tokenizer: str | None) -> None:
        """Wait until the model is loaded; if that fails, close, and raise CoreFailed with the reason.

        tokenizer: as in Vocabulary.
        """
        try:
            self.ready = await self._receive(Ready)
            self._writer.write(pack(Vocabulary(tokenizer)))
        except BaseException:
            await self.close()
            raise

    @property
    def silence(self) -> float:
        """Seconds for which the core has owed a step because it has work, or messages to process. 0 while
        it owes none.
        """
        return 0.0 if self._owing_since is None else time.monotonic() - self._owing_since

    def add(self, message: Add | Embed) -> None:
        """Send a new group; returns at once. If the core has ended this does nothing, and the iteration raises."""
        self._send(message)

    def abort(self, message: Abort) -> None:
        """Send the end of choices; tokens that were already in flight may still arrive."""
        self._send(message)

    def _send(self, message: ToCore) -> None:
        if not self._writer.is_closing():
            self._writer.write(pack(message))
            self._sent += 1
            if self._owing_since is None:
                self._owing_since = time.monotonic()

    def __aiter__(self) -> CoreClient:
        return self

    async def __anext__(self) -> StepDone:
        """Return the next step's outcome, in the order of the steps."""
        try:
            done = await self._receive(StepDone)
        except CoreFailed:
            if self._closed:
                raise StopAsyncIteration from None
            raise
        owes = done.taken < self._sent or done.stats.running + done.stats.waiting > 0
        self._owing_since = time.monotonic() if owes else None
        return done

    async def close(self) -> None:
        """End the core process and wait until it has ended; may be called twice."""
        self._closed = True
        self._writer.close()  # the core ends itself when it sees this
        try:
            async with asyncio.timeout(_END_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    async def _receive(self, kind: type[_Expected]) -> _Expected:
        try:
            header = await self._reader.readexactly(HEADER)
            message = unpack(await self._reader.readexactly(int.from_bytes(header, "big")))
        except (asyncio.IncompleteReadError, ConnectionError):
            status = await self._process.wait()
            how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
            if status == -signal.SIGKILL:
                how += ", as Linux ends a process when memory runs out"
            raise CoreFailed(f"the engine core {how}") from None
        if isinstance(message, kind):
            return message
        if isinstance(message, Broken):
            raise (CoreRefused if message.refused else CoreFailed)(message.message)
        raise CoreFailed(f"the engine core sent {message!r}")
