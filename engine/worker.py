"""The core process: the step loop, the only user of the CPU or GPU, and its end of the channel.

Started by channel.py with one socket, and ended with it: a thread listens on the socket, and when the server's end
closes, for whatever reason, the process ends at once, in the middle of loading or of a step.
"""

from __future__ import annotations

import logging
import os
import pkgutil
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import BinaryIO, NoReturn, assert_never

from engine import logs
from engine.config import EngineConfig
from engine.core import Core, Runner
from engine.errors import ConfigError, EngineError, ModelError
from engine.gc_freeze import gc_frozen
from engine.messages import (
    HEADER,
    Abort,
    Add,
    Broken,
    Embed,
    FromCore,
    Message,
    Start,
    ToCore,
    Vocabulary,
    pack,
    unpack,
)

_log = logging.getLogger(__name__)

# None only says that there is work: it wakes a core that sleeps.
Inbox = queue.SimpleQueue[ToCore | None]
Send = Callable[[FromCore], None]


def serve(engine: Core, inbox: Inbox, send: Send) -> NoReturn:
    """Run steps while there is work, and sleep while there is none.

    Messages that came before a step are processed before it.
    """
    while True:
        for message in _arrived(inbox, wait=not engine.has_work):
            match message:
                case Add() | Embed():
                    engine.add(message)
                case Abort():
                    engine.abort(message)
                case None:
                    pass
                case _:
                    assert_never(message)
        send(engine.step())


def _arrived(inbox: Inbox, *, wait: bool) -> Iterator[ToCore | None]:
    if wait:
        yield inbox.get()
    while True:
        try:
            yield inbox.get_nowait()
        except queue.Empty:
            return


def run(link: socket.socket) -> int:
    """Load what Start names and serve it until the server's end closes; return an exit status."""

    def send(message: FromCore) -> None:
        link.sendall(pack(message))  # blocks while the server does not read, so the core cannot run further ahead

    stream = link.makefile("rb")
    inbox: Inbox = queue.SimpleQueue()
    vocabulary: Future[Vocabulary] = Future()
    try:
        start = _read(stream)
        if not isinstance(start, Start):
            return 0  # the server went away at once
        # Before anything large is imported: a process that is loading must not outlive its server either.
        threading.Thread(target=_listen, args=(stream, vocabulary, inbox), name="listen", daemon=True).start()
        with gc_frozen():
            load: Callable[[EngineConfig], Runner] = pkgutil.resolve_name(start.loader)
            runner = load(start.config)
        send(runner.ready)
        tokenizer = vocabulary.result().tokenizer
        serve(Core(start.config, runner, tokenizer, lambda: inbox.put(None)), inbox, send)
    except (BrokenPipeError, ConnectionResetError):
        return 0  # the server is gone, so there is nobody to report to
    except Exception as error:
        last = str(error)
        if not isinstance(error, EngineError):  # its message is complete, and the server logs it
            _log.exception("the engine core ends")
            last = f"{type(error).__name__}: {error}"
        with suppress(OSError):  # the server is gone by now
            send(Broken(last, refused=isinstance(error, ConfigError | ModelError)))
    return 1


def _read(stream: BinaryIO) -> Message | None:
    """Return the next message; None if the server's end is closed, even in the middle of a message."""
    header = stream.read(HEADER)
    size = int.from_bytes(header, "big")
    if len(header) < HEADER or len(body := stream.read(size)) < size:
        return None
    return unpack(body)


def _listen(stream: BinaryIO, vocabulary: Future[Vocabulary], inbox: Inbox) -> None:
    """Take the vocabulary, and put every message after it into the inbox; end the process when there can be no more."""
    try:
        if isinstance(first := _read(stream), Vocabulary):
            vocabulary.set_result(first)
        while isinstance(message := _read(stream), ToCore):
            inbox.put(message)
    except ConnectionError:
        pass  # the server ended without having read everything
    except Exception:
        _log.exception("the channel from the server is broken")
    finally:
        # Not sys.exit: the main thread may be in the middle of a step, and there is nothing to save.
        os._exit(0)


def main() -> int:
    """`python -m engine.worker FD`: run the core at the far end of an inherited socket."""
    logs.configure(logging.INFO, "engine core: %(levelname)s: %(message)s")
    # Ctrl-C reaches the whole foreground process group, and systemd's SIGTERM all processes of a unit, but the server
    # decides when the core ends.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as link:
        return run(link)


if __name__ == "__main__":
    status = main()
    logging.shutdown()
    # Not sys.exit: shutting the interpreter down with a reading thread and a model takes time and can hang.
    os._exit(status)
