"""The whole way over real sockets, in front of a scripted server: what was sent, and what is told of it.

Times are told by the server's own pauses: no answer can be quicker, however slow the machine is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nproxy.cli.bench import client
from nproxy.cli.bench.asking import Form
from nproxy.cli.bench.client import Client
from nproxy.cli.bench.failed import BenchFailed
from nproxy.cli.bench.measuring import Measuring, Plan, until_set
from nproxy.cli.bench.progress import how_far
from nproxy.cli.bench.prompts import Same
from nproxy.cli.bench.schedule import Closed, Extent, Load, Open
from nproxy.cli.target import Target
from nproxy.config.replicas import parse_address
from nproxy.openai.dialect import Dialect
from nproxy.openai.jsonvalue import JSON
from tests.fakes.upstream import MODEL, Behaviour, FakeUpstream, raw_server

CANARY = "canary-5d19"
NATIVE = Behaviour(n="native")


@asynccontextmanager
async def asking(url: str, *, key: str | None = None, seconds: float = 60.0) -> AsyncIterator[Client]:
    async with client.opened(Target(parse_address(url), key), Dialect.CHAT, seconds) as it:
        yield it


def form(n: int = 1, **fields: JSON) -> Form:
    defaults: Mapping[str, JSON] = {"model": MODEL, "n": n, "stream": True}
    return Form(Same("hello", Dialect.CHAT), fields, defaults)


def measuring(
    asking: Client,
    load: Load | None = None,
    extent: Extent | None = None,
    *,
    warmup: int = 0,
    n: int = 1,
    **fields: JSON,
) -> Measuring:
    plan = Plan(load or Closed(2), extent or Extent(5, None), warmup, form(n, **fields), seed=1)
    return Measuring(plan, asking.ask, client.clock)


async def measured(server: FakeUpstream, n: int = 1, **fields: Any) -> Measuring:
    async with asking(server.url) as it:
        run = measuring(it, n=n, **fields)
        await run.run()
    return run


async def test_every_choice_of_every_request_is_counted() -> None:
    async with FakeUpstream(Behaviour(n="native", pause=0.01)) as server:
        run = await measured(server, n=3)
        assert len(server.calls) == 5
        assert server.most_at_once <= 2
    assert (run.tally.requests(run.begun).ok, run.tally.choices, run.tally.failed) == (5, 15, 0)
    tokens, spreads = run.tally.tokens(), run.tally.latencies()
    assert (tokens.prompt, tokens.completion, tokens.by_usage) == (5 * 5, 5 * 3 * 4, 5)
    counts = {name: spread.count for name, spread in spreads.items()}
    assert counts == {
        "time_to_first_token": 5,
        "time_to_first_token_per_choice": 15,
        "inter_token": 5 * 3 * 3,
        "time_per_output_token": 5,
        "choice": 15,
        "request": 5,
        "sibling_skew": 5,
    }
    # 18 chunks with a pause before each: 3 roles, 4 texts of each choice in turns, 3 ends, usage
    assert spreads["time_to_first_token"].p50 >= 0.04
    assert spreads["request"].p50 >= 0.16
    assert run.wall_seconds >= 3 * 0.16
    assert run.tail_seconds <= run.wall_seconds


async def test_an_ignored_n_is_a_failure() -> None:
    async with FakeUpstream(Behaviour(n="ignore")) as server:
        for stream in (True, False):
            run = await measured(server, n=2, stream=stream)
            (errors,) = run.tally.errors()
            assert (errors.kind, errors.count, errors.example) == ("short", 5, "1 of 2 choices came")
            assert run.tally.rates(1.0).choices == 0


async def test_chunks_where_there_is_no_usage() -> None:
    async with FakeUpstream(Behaviour(n="native", usage=False)) as server:
        tokens = (await measured(server, n=2)).tally.tokens()
        assert (tokens.completion, tokens.by_chunks) == (5 * 2 * 4, 5)
        assert (await measured(server, n=2, stream=False)).tally.tokens().completion == 0


REFUSED = b'{"error": {"message": "too many of you"}}'


@pytest.mark.parametrize(
    ("behaviour", "kind", "example"),
    [
        (Behaviour(status=429, body=REFUSED), "429", "too many of you"),
        (Behaviour(end_after=3, end="error"), "500 in the stream", "ran out of luck"),
        (Behaviour(end_after=3, end="malformed"), "malformed", "a chunk cannot be read: it is not JSON"),
        (Behaviour(end_after=3, end="cut"), "cut", "the connection ended before the answer"),
        (Behaviour(end_after=3, end="close"), "cut", "the stream ended before it was complete"),
        (Behaviour(before_head="close"), "broken", "the connection ended before the answer"),
        (Behaviour(body=b"<html>", content_type="text/html"), "malformed", "the answer cannot be read: it is not JSON"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_failures_by_kind_and_in_words(behaviour: Behaviour, kind: str, example: str) -> None:
    async with FakeUpstream(behaviour) as server:
        (errors,) = (await measured(server)).tally.errors()
    assert (errors.kind, errors.count, errors.example) == (kind, 5, example)


async def test_nobody_there() -> None:
    async with FakeUpstream() as server:
        url = server.url
    async with asking(url) as it:
        record = await it.ask(form().ask(0))
        with pytest.raises(BenchFailed, match="cannot be reached: connection refused"):
            await it.first_model()
    assert record.failure == ("connect", "connection refused")


async def test_an_answer_that_takes_too_long() -> None:
    behaviour = Behaviour(hold=asyncio.Event())
    async with FakeUpstream(behaviour) as server, asking(server.url, seconds=0.05) as it:
        assert (await it.ask(form().ask(0))).failure == ("timeout", "not complete within 0.05 s")


async def test_a_server_that_goes_on_behind_the_end_is_left() -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        events = b'data: {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + events)
        await reader.read()
        while not reader.at_eof():
            await reader.read()

    async with raw_server(endless) as url, asking(url) as it:
        async with asyncio.timeout(30):
            record = await it.ask(form().ask(0))
    assert record.failure is None
    assert record.width == 1


async def test_the_key_is_sent_and_told_nowhere() -> None:
    echo = f'{{"error": {{"message": "no {CANARY} here"}}}}'.encode()
    async with FakeUpstream(Behaviour(status=403, body=echo)) as server, asking(server.url, key=CANARY) as it:
        failure = (await it.ask(form().ask(0))).failure
        assert {seen.headers["Authorization"] for seen in server.requests} == {f"Bearer {CANARY}"}
    assert failure == ("403", "no *** here")


async def test_an_open_loop_goes_on_while_nothing_is_answered() -> None:
    """A closed loop would never send the third request: the server answers none before it has seen them all."""
    held = Behaviour(n="native", hold=asyncio.Event())
    async with FakeUpstream(held) as server, asking(server.url) as it, asyncio.TaskGroup() as group:
        run = measuring(it, Open(rate=1000.0), Extent(3, None))
        group.create_task(run.run())
        await server.until(lambda: len(server.open_calls) == 3, 30)
        assert held.hold is not None
        held.hold.set()
    assert run.tally.ok == 3


async def test_times_count_from_the_moment_a_request_was_due() -> None:
    """Both are due at once, and the machine is taken away for a while before the second can be sent."""
    clock = client.clock
    async with FakeUpstream(NATIVE) as server, asking(server.url) as it:
        sent = clock()
        record = await it.ask(form().ask(0), due=sent - 5.0)
    assert record.late >= 5.0
    assert record.seconds >= 5.0
    assert all((choice.first or 0.0) >= 5.0 for choice in record.choices)


async def test_warming_up_does_not_count() -> None:
    async with FakeUpstream(NATIVE) as server, asking(server.url) as it:
        run = measuring(it, warmup=3)
        assert await run.warm_up() is None
        assert (len(server.calls), run.tally.ok, run.begun) == (3, 0, 0)
        assert how_far(run, Extent(5, None), 0.0) == ("warming up", 0.0)
        await run.run()
        assert (len(server.calls), run.tally.ok, run.begun) == (8, 5, 5)


async def test_a_warm_up_of_which_nothing_was_answered_says_why() -> None:
    async with FakeUpstream(Behaviour(status=404, body=REFUSED)) as server, asking(server.url) as it:
        assert await measuring(it, warmup=2).warm_up() == ("404", "too many of you")
        server.script(Behaviour())
        assert await measuring(it, warmup=2).warm_up() is None


async def test_what_was_measured_when_it_is_cut_off() -> None:
    held = Behaviour(hold=asyncio.Event())
    async with FakeUpstream() as server, asking(server.url) as it:
        server.script(Behaviour(), Behaviour(), held, held)
        run, told = measuring(it, extent=Extent(100, None)), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            cut = group.create_task(until_set(run.run(), told))
            await server.until(lambda: len(server.calls) == 4, 30)
            told.set()
        assert cut.result()
        await server.until(lambda: not server.open_calls, 30)
    requests = run.tally.requests(run.begun)
    assert (requests.ok, requests.failed, requests.unfinished) == (2, 0, 2)
    assert run.wall_seconds > 0
    words, share = how_far(run, Extent(100, None), (run.started or 0.0) + 2.0)
    assert words.startswith("2 s: 2 ended, 2 in flight, ")
    assert share == 0.02


async def test_how_far_by_time_and_never_beyond_the_end() -> None:
    async with FakeUpstream(Behaviour(status=500)) as server, asking(server.url) as it:
        run = measuring(it)
        await run.run()
    started = run.started or 0.0
    words, share = how_far(run, Extent(None, 8.0), started + 2.0)
    assert share == pytest.approx(0.25)
    assert "5 ended, 5 failed, 0 in flight" in words
    assert how_far(run, Extent(None, 8.0), started + 20.0)[1] == 1.0


async def test_a_unix_socket(tmp_path: Path) -> None:
    async with FakeUpstream(NATIVE, unix=str(tmp_path / "it.sock")) as server:
        assert (await measured(server, n=2)).tally.choices == 10


async def test_the_first_model() -> None:
    async with FakeUpstream(models=["b", "a"]) as server, asking(server.url) as it:
        assert await it.first_model() == "b"
        server.models = []
        with pytest.raises(BenchFailed, match="it lists no models; name one with --model"):
            await it.first_model()
        server.list_fails = True
        with pytest.raises(BenchFailed, match="the list of models cannot be read, name one with --model: 500: no list"):
            await it.first_model()


async def test_a_list_that_needs_a_key() -> None:
    answer = b'{"error": {"message": "no key"}}'
    head = f"HTTP/1.1 401 Unauthorized\r\nContent-Type: application/json\r\nContent-Length: {len(answer)}\r\n\r\n"

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head.encode() + answer)
        await writer.drain()

    async with raw_server(refuse) as url, asking(url) as it:
        with pytest.raises(BenchFailed, match=r"it needs a key \(--api-key\): 401: no key"):
            await it.first_model()
