"""The routers in front of the servers, each started as its users do, and nproxy with and without resume."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.failover.replicas import Pair
from tests.compatibility.installing import pinned
from tests.ports import free_port
from tests.real.processes import nproxy, server

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@dataclass(frozen=True, slots=True)
class Front:
    """A router.

    started: runs it in front of a pair, with logs in a folder, and gives its URL. endpoint: the path to request.
    """

    started: Callable[[Pair, Path], AbstractContextManager[str]]
    endpoint: str = CHAT


@contextmanager
def ours(pair: Pair, logs: Path, *, resume: str, n: str) -> Iterator[str]:
    upstream = {
        "name": "pair",
        "replicas": [f"{url}/v1" for url in pair.urls],
        "n": n,
        "resume": resume,
        "chat_continues": "flag",
        "retries": {"per_leg": 2, "budget": 0.5},
    }
    file = logs / "nproxy.yaml"
    file.write_text(json.dumps({"upstreams": [upstream]}))
    with nproxy("--config", str(file), log=logs / "nproxy.log") as running:
        yield running.url


@contextmanager
def router(pair: Pair, logs: Path, *, name: str, module: str, words: tuple[str, ...] = ()) -> Iterator[str]:
    port = free_port()
    argv = [sys.executable, "-P", "-m", module, *words, "--worker-urls", *pair.urls]
    argv += ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port())]
    env = {**os.environ, "PYTHONPATH": str(pinned(name)), "HF_HUB_OFFLINE": "1"}
    with server(argv, port=port, log=logs / f"{name}.log", ready="/readiness", env=env, seconds=120) as running:
        yield running.url


FRONTS: Mapping[str, Front] = {
    "nproxy, replay": Front(partial(ours, resume="replay", n="fanout")),
    "nproxy, replay, native n": Front(partial(ours, resume="replay", n="native")),
    "nproxy, continue": Front(partial(ours, resume="continue", n="fanout")),
    "nproxy, continue, completions": Front(partial(ours, resume="continue", n="fanout"), COMPLETIONS),
    "nproxy, resume off": Front(partial(ours, resume="off", n="fanout")),
    "smg": Front(partial(router, name="smg", module="smg", words=("launch",))),
    "vllm-router": Front(partial(router, name="vllm-router", module="vllm_router.launch_router")),
}
