"""What the parent says for its workers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nproxy.workers.parent import Parent


class Answering:
    """A worker that says whether it is ready after some seconds."""

    def __init__(self, reason: str | None, seconds: float = 0.0) -> None:
        self._reason, self._seconds = reason, seconds

    async def ask(self, what: str, seconds: float) -> str | None:
        assert what == "ready"
        async with asyncio.timeout(seconds):
            await asyncio.sleep(self._seconds)
        return self._reason


@pytest.mark.parametrize(
    ("workers", "reason"),
    [
        ([], "No worker is ready."),
        ([Answering("No model."), Answering("No model.")], "No model."),
        ([Answering("No model."), Answering(None)], None),
    ],
)
async def test_the_gateway_is_ready_if_a_worker_is(workers: list[Answering], reason: str | None) -> None:
    parent = SimpleNamespace(supervisor=SimpleNamespace(ending=False, serving=workers))
    assert await Parent.why_unready(cast("Any", parent)) == reason


async def test_a_gateway_that_drains_says_so() -> None:
    parent = SimpleNamespace(supervisor=SimpleNamespace(ending=True, serving=[]))
    assert await Parent.why_unready(cast("Any", parent)) == "The gateway is shutting down."


async def test_a_worker_that_does_not_answer_holds_up_no_answer_of_another() -> None:
    parent = SimpleNamespace(
        supervisor=SimpleNamespace(ending=False, serving=[Answering(None, 3600.0), Answering(None, 0.01)])
    )
    began = asyncio.get_running_loop().time()
    assert await Parent.why_unready(cast("Any", parent)) is None
    assert asyncio.get_running_loop().time() - began < 2.0
