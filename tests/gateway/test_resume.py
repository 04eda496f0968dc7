"""Resuming over real sockets: two replicas that break off wherever the first call of a leg is told to."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest

from tests.fakes.upstream import Behaviour, FakeUpstream, Seen
from tests.gateway.conftest import CHAT, PROMPT, Gateway, Stream, gateway_for

COMPLETIONS = "/v1/completions"
PIECES = 12

End = Literal["reset", "cut", "close", "malformed", "error"]


def pieces(seed: int) -> list[str]:
    """What a choice says; long enough for chunks that are not parsed."""
    return [f"{seed}.{place} é\n" for place in range(PIECES)]


def text(seed: int) -> str:
    return "".join(pieces(seed))


def first(seen: Seen) -> bool:
    """Whether this is a leg's first call."""
    return "-r" not in seen.headers["x-request-id"][-4:]


@asynccontextmanager
async def fleet(choose: Callable[[Seen], Behaviour | None], **settings: Any) -> AsyncIterator[tuple[Gateway, Any]]:
    """A gateway in front of two replicas that answer by `choose`."""
    async with FakeUpstream(Behaviour(pieces=pieces)) as one, FakeUpstream(Behaviour(pieces=pieces)) as two:
        one.choose = two.choose = choose
        upstream = {"name": "fake", "replicas": [one.url, two.url], "n": "fanout", "resume": "replay", **settings}
        upstream.setdefault("retries", {"per_leg": 3, "budget": 1})
        async with gateway_for({"upstreams": [upstream]}) as gateway:
            yield gateway, [one, two]


def whole(stream: Stream, n: int, seed: int = 5) -> bool:
    """Whether the client got what one undisturbed request gives."""
    assert stream.done, stream.raw[-300:]
    assert stream.texts == {index: text(seed + index) for index in range(n)}
    assert stream.finishes == {index: ["stop"] for index in range(n)}
    assert stream.chunks[-1]["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": n * PIECES,
        "total_tokens": 5 + n * PIECES,
    }
    return True


async def ask(gateway: Gateway, path: str = CHAT, n: int = 4, **fields: Any) -> Stream:
    return await gateway.stream(path, n=n, seed=5, stream_options={"include_usage": True}, **fields)


@pytest.mark.parametrize(("path", "n"), [(CHAT, 1), (CHAT, 4), (COMPLETIONS, 2)])
@pytest.mark.parametrize("end", ["reset", "cut", "close", "malformed", "error"])
async def test_a_cut_is_not_seen(end: End, n: int, path: str) -> None:
    places = itertools.count(1)

    def choose(seen: Seen) -> Behaviour | None:
        return Behaviour(pieces=pieces, end_after=next(places) * 2, end=end) if first(seen) else None

    async with fleet(choose) as (gateway, servers):
        assert whole(await ask(gateway, path, n), n)
        calls = [seen for server in servers for seen in server.calls]
        seeds = sorted(seen.body["seed"] for seen in calls if not first(seen))
        assert seeds == list(range(5, 5 + n)) and len(calls) == 2 * n
        assert all(seen.headers["x-request-id"].endswith("-r1") for seen in calls if not first(seen))
        resumed = 'nproxy_resumes_total{how="replay",outcome="ok",upstream="fake"}'
        assert await gateway.metric(resumed) == n
        assert await gateway.metric('nproxy_inflight_legs{upstream="fake"}') == 0


async def test_a_stall_is_not_seen_either() -> None:
    def choose(seen: Seen) -> Behaviour | None:
        return Behaviour(pieces=pieces, hold_after=5) if first(seen) and seen.body["seed"] == 6 else None

    async with fleet(choose, timeouts={"idle": 0.2}) as (gateway, _):
        assert whole(await ask(gateway), 4)


async def test_native_choices_that_were_done_stay() -> None:
    def choose(seen: Seen) -> Behaviour:
        ended = {"end_after": 4 + 4 * 7 + 1} if first(seen) else {}
        return Behaviour(n="native", pieces=pieces, **ended)  # type: ignore[arg-type]

    async with fleet(choose, n="native") as (gateway, servers):
        assert whole(await ask(gateway), 4)
        assert sum(len(server.calls) for server in servers) == 2


async def test_another_answer_ends_in_an_error_and_siblings_live() -> None:
    def choose(seen: Seen) -> Behaviour | None:
        if seen.body["seed"] != 6:
            return None
        return Behaviour(pieces=pieces, end_after=5) if first(seen) else Behaviour(pieces=lambda seed: ["no"] * 99)

    async with fleet(choose) as (gateway, _):
        stream = await ask(gateway)
        assert not stream.done and "error" in stream.chunks[-1]
        assert {index: stream.texts[index] for index in (0, 2, 3)} == {index: text(5 + index) for index in (0, 2, 3)}
        assert text(6).startswith(stream.texts[1])
        assert await gateway.metric('nproxy_resumes_total{how="replay",outcome="differs",upstream="fake"}') == 1


async def test_a_stream_without_a_seed_is_drawn_once() -> None:
    async with fleet(lambda seen: Behaviour(pieces=pieces, end_after=5) if first(seen) else None) as (gateway, servers):
        stream = await gateway.stream()
        seeds = {seen.body["seed"] for server in servers for seen in server.calls}
        assert stream.done and len(seeds) == 1 and stream.texts == {0: text(seeds.pop())}


async def test_off_is_what_it_was() -> None:
    async with fleet(lambda seen: Behaviour(pieces=pieces, end_after=5), resume="off") as (gateway, servers):
        stream = await ask(gateway, n=2)
        assert not stream.done and "error" in stream.chunks[-1]
        assert sum(len(server.calls) for server in servers) == 2


async def test_a_client_that_leaves_ends_what_waits_to_be_resumed() -> None:
    broken = asyncio.Event()

    def choose(seen: Seen) -> Behaviour | None:
        if first(seen):
            return Behaviour(pieces=pieces, end_after=5)
        broken.set()
        return Behaviour(pieces=pieces, hold=asyncio.Event())

    async with fleet(choose) as (gateway, servers):
        asked = asyncio.create_task(ask(gateway))
        await asyncio.wait_for(broken.wait(), 10)
        asked.cancel()
        for server in servers:
            await server.until(lambda server=server: not server.open_calls)
        assert await gateway.metric("nproxy_inflight_choices") == 0


async def test_the_only_replica_is_started_anew() -> None:
    """All that streams there is cut at the same moment, which opens its breaker; nobody is refused for that."""
    async with FakeUpstream(Behaviour(pieces=pieces, hold_after=6)) as server:
        upstream = {"name": "fake", "replicas": [server.url], "n": "fanout", "resume": "replay"}
        eager = {"breaker": {"in_a_row": 1}, "retries": {"per_leg": 2, "budget": 1}}
        async with gateway_for({"upstreams": [{**upstream, **eager}]}) as gateway:
            asked = [asyncio.create_task(ask(gateway, n=2)) for _ in range(5)]
            await server.until(lambda: sum(seen.sent > 100 for seen in server.open_calls) == 10)
            server.behaviour = Behaviour(pieces=pieces)
            await server.stop()
            waits = 'nproxy_retries_total{reason="unavailable",upstream="fake"}'
            async with asyncio.timeout(10):
                while not await gateway.metric(waits):
                    await asyncio.sleep(0.01)
            await server.__aenter__()
            assert all(whole(stream, 2) for stream in await asyncio.gather(*asked))
            assert await gateway.metric('nproxy_inflight_legs{upstream="fake"}') == 0


@pytest.mark.parametrize(("way", "path"), [("flag", CHAT), ("trailing", CHAT), ("no", COMPLETIONS)])
@pytest.mark.parametrize("n", [1, 3])
async def test_continuing_from_what_was_said(way: str, path: str, n: int) -> None:
    """The server goes on where its prompt ends, as one does that continues it."""

    def choose(seen: Seen) -> Behaviour:
        if first(seen):
            return Behaviour(pieces=pieces, end_after=6, end="cut")
        spoken = seen.body["prompt"][len(PROMPT) :] if path == COMPLETIONS else seen.body["messages"][-1]["content"]
        return Behaviour(pieces=lambda seed: _behind(text(seed), spoken), usage=_counts(spoken))

    def _behind(all: str, spoken: str) -> list[str]:
        assert all.startswith(spoken), "what was produced is the prefix"
        return all[len(spoken) :].splitlines(keepends=True)

    def _counts(spoken: str) -> Callable[[list[int]], dict[str, Any]]:
        had = spoken.count("\n")
        return lambda _: {"prompt_tokens": 5 + had, "completion_tokens": PIECES - had, "total_tokens": 5 + PIECES}

    async with fleet(choose, resume="continue", chat_continues=way) as (gateway, servers):
        assert whole(await ask(gateway, path, n, max_tokens=50), n)
        again = [seen.body for server in servers for seen in server.calls if not first(seen)]
        assert len(again) == n and all(body["max_tokens"] < 50 for body in again)
        assert [body.get("continue_final_message") for body in again] == [True if way == "flag" else None] * n
