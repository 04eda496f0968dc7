"""The gateways, each as its users start it: one process, no log of requests, connections kept open."""

from __future__ import annotations

import string
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench.gateway import installing
from bench.gateway.cases import CHAT
from tests.real.processes import free_port, server

SETTINGS = Path(__file__).with_name("settings")
NO_N = "has no n"


@dataclass(frozen=True, slots=True)
class Running:
    """A gateway that runs: where it listens, its first process (none where there is no gateway), how it is asked."""

    port: int
    pid: int | None
    headers: Mapping[str, str] = field(default_factory=lambda: {"Authorization": "Bearer none"})
    path: str = CHAT


Start = Callable[[int, Path], AbstractContextManager[Running]]
"""Runs a gateway before the upstream at this port, logging into a folder."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A gateway to measure. version: brings it here, and gives its version. settings: its file among settings/.

    n: "own" where it gives n itself; "unmerged" where the same legs are asked as requests of their own, for comparison;
    else why it is not asked.
    """

    start: Start
    version: Callable[[], str]
    settings: str
    n: str = NO_N


@contextmanager
def nobody(upstream: int, folder: Path) -> Iterator[Running]:
    """No gateway: the load goes straight to the upstream."""
    yield Running(upstream, None)


@contextmanager
def filled(
    upstream: int, folder: Path, *, settings: str, argv: Callable[[Path, int], Sequence[str]], ready: str = "/v1/models"
) -> Iterator[Running]:
    """A program with a file of settings, in which $UPSTREAM, $PORT and $FOLDER are filled in.

    argv: its command line, by the file and the port.
    """
    port = free_port()
    file = folder / settings
    template = string.Template((SETTINGS / settings).read_text())
    file.write_text(template.safe_substitute(UPSTREAM=upstream, PORT=port, FOLDER=folder))
    log = folder / f"{settings}.log"
    with server(argv(file, port), port=port, log=log, ready=ready, seconds=120) as running:
        yield Running(port, running.process.pid)


def said(*argv: str) -> str:
    """The first line that a command prints, wherever it prints it."""
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return (done.stdout or done.stderr).splitlines()[0]


def _nproxy(file: Path, port: int, words: Sequence[str] = ()) -> Sequence[str]:
    return [sys.executable, "-m", "nproxy", "serve", "--config", str(file), *words]


def _nginx(file: Path, port: int) -> Sequence[str]:
    return [str(installing.debian("nginx", "usr/sbin/nginx")), "-c", str(file), "-p", str(file.parent)]


PEERS: Mapping[str, Peer] = {
    "direct": Peer(nobody, lambda: "", "no gateway", "unmerged"),
    "nginx": Peer(
        partial(filled, settings="nginx.conf", argv=_nginx),
        lambda: said(str(installing.debian("nginx", "usr/sbin/nginx")), "-v").rpartition("/")[2],
        "nginx.conf",
        "unmerged",
    ),
    "nproxy": Peer(
        partial(filled, settings="nproxy.yaml", argv=_nproxy, ready="/ready"),
        installing.ours,
        "nproxy.yaml",
        "own",
    ),
    "nproxy, no access log": Peer(
        partial(
            filled, settings="nproxy.yaml", argv=partial(_nproxy, words=("--log-level", "warning")), ready="/ready"
        ),
        installing.ours,
        "nproxy.yaml",
        "own",
    ),
}
