"""Two servers of one model, one of which can be killed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from nproxy import models
from tests.compatibility.installing import llama_cpp
from tests.ports import free_port
from tests.real.processes import Server, server

MODEL = "smollm2-135m-instruct"
Start = Callable[[Path], AbstractContextManager[Server]]

_ENV = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}


@contextmanager
def engine(log: Path) -> Iterator[Server]:
    """Run nproxy's engine alone, in fp32, where the text depends least on the rest of the batch."""
    port = free_port()
    argv = [sys.executable, "-P", "-m", "engine", str(models.fetch(models.DEFAULT)), "--served-model-name", MODEL]
    argv += ["--dtype", "float32", "--port", str(port), "--log-level", "warning"]
    with server(argv, port=port, log=log, ready="/health", env=_ENV, seconds=300) as running:
        yield running


@contextmanager
def llama(log: Path) -> Iterator[Server]:
    """Run llama.cpp's own server, with a slot for each choice."""
    folder, port = llama_cpp(), free_port()
    argv = [str(folder / "llama-server"), "--model", str(models.fetch(models.DEFAULT)), "--alias", MODEL]
    argv += ["--host", "127.0.0.1", "--port", str(port), "--threads", "1", "--parallel", "8", "--ctx-size", "8192"]
    with server(argv, port=port, log=log, ready="/health", env=_ENV, seconds=300) as running:
        yield running


BEHIND: Mapping[str, Start] = {"engine": engine, "llama.cpp": llama}


@dataclass(frozen=True, slots=True)
class Pair:
    """The two servers."""

    servers: tuple[Server, Server]
    model: str = MODEL

    @classmethod
    @contextmanager
    def started(cls, start: Start, logs: Path) -> Iterator[Self]:
        with ExitStack() as stack:
            first, second = (stack.enter_context(start(logs / f"replica-{number}.log")) for number in (1, 2))
            yield cls((first, second))

    @property
    def urls(self) -> list[str]:
        """URLs without a path."""
        return [one.url for one in self.servers]

    def busy_seconds(self) -> list[float]:
        """Return the CPU seconds that each has used so far."""
        return [sum(sum(process.cpu_times()[:2]) for process in one.family()) for one in self.servers]

    def kill_the_busier(self, before: list[float]) -> None:
        """Kill the server that has used more CPU time since `before`, with all its processes."""
        spent = [now - then for now, then in zip(self.busy_seconds(), before, strict=True)]
        self.servers[spent.index(max(spent))].kill()
