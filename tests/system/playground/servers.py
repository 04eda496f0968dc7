"""What is behind the page: the real model, also asked directly to compare, or a gateway over a scripted upstream."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.fakes.upstream import Behaviour, FakeUpstream
from tests.real.fixtures import MODEL
from tests.real.processes import Server, nproxy
from tests.system.playground.window import LINE


def asked(server: Server, prompt: str = LINE, **fields: Any) -> Any:
    """Send the page's request directly, not streamed, and return the answer."""
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0.7,
        "top_p": 0.9,
        **fields,
    }
    answer = httpx.post(f"{server.v1}/chat/completions", json=body, timeout=60, trust_env=False)
    return answer.raise_for_status().json()


def said(answer: Any) -> list[tuple[int, str, str]]:
    return [(c["index"], c["finish_reason"], c["message"]["content"]) for c in answer["choices"]]


def gateway(upstream: str, *words: str, log: Path) -> Any:
    """Run `nproxy serve` in front of a scripted upstream, which has no `n`."""
    return nproxy("--upstream", upstream, "--n", "fanout", *words, log=log, ready="/health")


class Scripted(FakeUpstream):
    """A scripted upstream that runs on its own event loop."""

    def __init__(self, behaviour: Behaviour, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(behaviour)
        self._loop = loop

    def go_on(self) -> None:
        """Release the held answer; can be called from any thread."""
        self._loop.call_soon_threadsafe(self.behaviour.go_on.set)


@contextmanager
def scripted(behaviour: Behaviour) -> Iterator[Scripted]:
    """Run an upstream on an event loop in a thread of its own, because the browser's calls do not use asyncio."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    upstream = Scripted(behaviour, loop)
    asyncio.run_coroutine_threadsafe(upstream.__aenter__(), loop).result(30)
    try:
        yield upstream
    finally:
        loop.call_soon_threadsafe(behaviour.go_on.set)
        asyncio.run_coroutine_threadsafe(upstream.stop(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
