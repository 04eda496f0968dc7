"""Many questions at once: their answers in order, an error of one, and Ctrl-C while they wait."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import httpx
import pytest

from nproxy.cli.probe.client import Client
from nproxy.cli.probe.questions import Post, Reply, Together
from nproxy.cli.target import parse_target
from tests.fakes.upstream import Behaviour, FakeUpstream


class Answering(Client):
    """Answers with the number in the question, and raises where it is negative."""

    def _once(self, question: object) -> Reply:
        if isinstance(question, Together):
            return super()._once(question)
        assert isinstance(question, Post)
        number = question.body["n"]
        assert isinstance(number, int)
        if number < 0:
            raise ValueError(number)
        return Reply(number)


def together(*numbers: int) -> Together:
    return Together([Post("/chat/completions", {"n": number}) for number in numbers])


def test_replies_come_in_the_order_of_the_questions() -> None:
    with httpx.Client() as http:
        client = Answering(parse_target("http://127.0.0.1:9", None), 1.0, http)
        first = client.ask(together(*range(32)))
        assert [first.status, *(other.status for other in first.others)] == [*range(32)]
        with pytest.raises(ValueError, match="-1"):
            client.ask(together(1, -1, 2))


PROGRAM = """
import signal, sys, httpx
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from nproxy.cli.probe.client import Client
from nproxy.cli.probe.questions import Post, Together
from nproxy.cli.target import parse_target
with httpx.Client(timeout=60) as http:
    client = Client(parse_target(sys.argv[1], None), 60.0, http)
    client.ask(Together([Post("/chat/completions", {"model": "fake-model", "messages": []})] * 8))
"""


async def test_ctrl_c_waits_for_no_answer() -> None:
    async with FakeUpstream(Behaviour(hold=asyncio.Event())) as upstream:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROGRAM, upstream.url),
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": "."},
        )
        try:
            async with asyncio.timeout(30):
                await upstream.until(lambda: len(upstream.open_calls) == 8, 30)
                process.send_signal(signal.SIGINT)
                _, said = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.communicate()
        await upstream.until(lambda: not upstream.open_calls, 30)
    assert process.returncode == -signal.SIGINT and said.decode().rstrip().endswith("KeyboardInterrupt")
