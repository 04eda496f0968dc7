"""Replicas that fail, stand still, or want to be left alone: which of them take calls, seen over sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nproxy.upstreams import breaker
from tests.fakes.behaviour import said
from tests.fakes.unreachable import says_nothing
from tests.fakes.upstream import MODEL, Behaviour, FakeUpstream, raw_server
from tests.gateway.conftest import Gateway, Start, envelope, gateway_for
from tests.waiting import until

FAILS = Behaviour(status=500)
NEVER = {"in_a_row": 3, "open": 3600}
"""A breaker that stays open as long as there is another replica."""
FAST = {"interval": 0.05, "timeout": 0.2, "down_after": 2}


@asynccontextmanager
async def pair(*urls: str, **settings: Any) -> AsyncIterator[Gateway]:
    """A gateway in front of one upstream with these replicas."""
    upstream = {"name": "pair", "replicas": list(urls), "n": "fanout", "models": [MODEL], **settings}
    async with gateway_for({"upstreams": [upstream]}) as gateway:
        yield gateway


def replica(gateway: Gateway, url: str) -> Any:
    """One replica as the gateway sees it."""
    return next(one for one in gateway.app.upstreams.all[0].gate.replicas if one.label == url)


@pytest.fixture
async def other() -> AsyncIterator[FakeUpstream]:
    async with FakeUpstream() as server:
        yield server


async def stand_still(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """What a stopped server looks like: its kernel takes connections and bytes, and nothing comes back."""
    await reader.read(-1)


async def test_replicas_that_refuse_connections_are_passed_by_until_one_takes_it(upstream: FakeUpstream) -> None:
    """Whatever order they come in, and even with a single attempt left."""
    gone = [f"http://127.0.0.1:{port}/v1" for port in (1, 9, 11)]
    async with pair(*gone, upstream.url, retries={"per_leg": 1, "budget": 0.0}) as gateway:
        answers = await asyncio.gather(*[gateway.ask(n=4) for _ in range(8)])
        assert [answer.status_code for answer in answers] == [200] * 8
    async with pair(*gone, upstream.url, retries={"per_leg": 1, "budget": 0.0}) as gateway:
        passed = [gateway.post({"model": MODEL, "input": "x"}, "/v1/embeddings") for _ in range(8)]
        assert [answer.status_code for answer in await asyncio.gather(*passed)] == [200] * 8


async def test_if_all_refuse_them_each_is_asked_and_then_as_often_as_attempts_are_left() -> None:
    gone = [f"http://127.0.0.1:{port}/v1" for port in (1, 9, 11)]
    async with pair(*gone, retries={"per_leg": 1, "budget": 0.0}, health={"interval": None}) as gateway:
        assert (await gateway.ask()).status_code == 502
        assert await gateway.metric('nproxy_retries_total{reason="connect",upstream="pair"}') == 2 + 1


# ---- the breaker


async def test_a_replica_that_fails_gets_no_more_calls(upstream: FakeUpstream, other: FakeUpstream) -> None:
    upstream.behaviour = FAILS
    async with pair(upstream.url, other.url, breaker=NEVER, health={"interval": None}) as gateway:
        codes = [(await gateway.ask()).status_code for _ in range(40)]
        assert codes.count(500) == len(upstream.calls) == 3 and set(codes[-10:]) == {200}
        labels = f'{{replica="{upstream.url}",upstream="pair"}}'
        assert await gateway.metric("nproxy_breaker_open" + labels) == 1
        (told, _) = (await gateway.client.get("/status")).json()["upstreams"][0]["replicas"]
        assert told["breaker"] == "open"


@pytest.mark.parametrize(
    "bad",
    [
        Behaviour(end_after=2, end="close"),
        Behaviour(end_after=2, end="malformed"),
        Behaviour(end_after=0, end="error"),
        Behaviour(before_head="close"),
        Behaviour(status=503),
        Behaviour(body=b"<html>", content_type="text/html"),
    ],
    ids=["cut", "malformed", "in band", "reset", "503", "html"],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_whatever_way_it_fails(start: Start, upstream: FakeUpstream, bad: Behaviour, stream: bool) -> None:
    gateway = await start(breaker=NEVER, retries={"per_leg": 0}, models=[MODEL])
    upstream.behaviour = bad if stream or bad.end_after is None else Behaviour(body=b'{"choices": [{"ind')
    for number in range(1, 4):
        assert replica(gateway, upstream.url).breaker_state == "closed"
        await gateway.ask(stream=stream)
        assert len(upstream.calls) == number
    assert replica(gateway, upstream.url).breaker_state == "open"


async def test_a_request_counts_once_however_many_legs_fail(start: Start, upstream: FakeUpstream) -> None:
    gateway = await start(breaker=NEVER, retries={"per_leg": 0})
    upstream.behaviour = Behaviour(status=503)
    for _ in range(2):
        assert (await gateway.ask(n=8)).status_code == 503
    assert len(upstream.calls) > 6, "of two requests"
    assert replica(gateway, upstream.url).breaker_state == "closed"
    await gateway.ask(n=8)
    assert replica(gateway, upstream.url).breaker_state == "open"


@pytest.mark.parametrize("status", [400, 404, 422, 429])
async def test_what_is_the_clients_doing_does_not_count(start: Start, upstream: FakeUpstream, status: int) -> None:
    gateway = await start(breaker=NEVER, retries={"per_leg": 0})
    upstream.behaviour = Behaviour(status=status)
    for _ in range(8):
        assert (await gateway.ask()).status_code == status
    assert replica(gateway, upstream.url).breaker_state == "closed" and len(upstream.calls) == 8


async def test_a_client_that_left_does_not_count(start: Start, upstream: FakeUpstream) -> None:
    gateway = await start(breaker=NEVER)
    upstream.behaviour = Behaviour(hold=asyncio.Event())
    for number in range(1, 6):
        asked = asyncio.create_task(gateway.ask())
        await upstream.until(lambda number=number: len(upstream.calls) == number)  # type: ignore[misc]
        asked.cancel()
        await upstream.until(lambda: not upstream.open_calls)
    await until(lambda: gateway.app.inflight == 0, 20)
    assert replica(gateway, upstream.url).breaker_state == "closed"


async def test_all_open_fails_at_once_and_says_when_to_come_again(
    start: Start, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker, "LAST_RESORT_SECONDS", 3600.0)
    brief = {"first_event": 2, "response": 2}
    gateway = await start(breaker={**NEVER, "open": 0.5}, timeouts=brief)
    upstream.behaviour = Behaviour(hold=asyncio.Event())
    assert {answer.status_code for answer in await asyncio.gather(*(gateway.ask() for _ in range(3)))} == {504}
    refused = await gateway.ask(n=3)
    assert refused.status_code == 503 and envelope(refused)["code"] == "upstream_unavailable"
    assert refused.headers["retry-after"] == "1" and len(upstream.calls) == 3
    passed_on = await gateway.post({}, "/v1/embeddings")
    assert passed_on.status_code == 503 and envelope(passed_on)["code"] == "upstream_unavailable"

    await until(lambda: replica(gateway, upstream.url).breaker_state == "half_open", 20)
    held = asyncio.Event()
    upstream.behaviour = Behaviour(hold=held)
    trial = asyncio.create_task(gateway.ask(n=2))
    await upstream.until(lambda: len(upstream.open_calls) == 2)
    assert (await gateway.ask()).status_code == 503, "one request tries it, with all its calls"
    held.set()
    assert (await trial).status_code == 200
    assert replica(gateway, upstream.url).breaker_state == "closed"
    assert (await gateway.ask()).status_code == 200


@pytest.mark.parametrize("bad", [FAILS, Behaviour(status=503), Behaviour(before_head="reset")])
async def test_one_that_answers_is_asked_on_where_there_is_no_other(
    start: Start, upstream: FakeUpstream, bad: Behaviour, caplog: pytest.LogCaptureFixture
) -> None:
    """What one client asks for can fail every time, at an endpoint that a server has not, and others are served."""
    gateway = await start(breaker={"in_a_row": 1, "open": 3600}, retries={"per_leg": 0})
    upstream.choose = lambda seen: bad if seen.path.endswith("/v1/completions") else None
    for _ in range(20):
        assert (await gateway.ask("/v1/completions", stream=True)).status_code >= 500
        assert replica(gateway, upstream.url).breaker_state == "open"
        assert {answer.status_code for answer in await asyncio.gather(*(gateway.ask(n=2) for _ in range(3)))} == {200}
    assert len(upstream.calls) >= 20 * 7, "those whose kept-alive connection was closed are made once more"
    assert caplog.messages.count("a replica's circuit breaker is open") == 1, "though it opens and closes all the time"


async def test_a_long_answer_holds_up_nobody_where_there_is_no_other_replica(
    start: Start, upstream: FakeUpstream
) -> None:
    gateway = await start(breaker={"in_a_row": 1, "open": 0.01})
    upstream.behaviour = FAILS
    await gateway.ask()
    upstream.behaviour = Behaviour(hold=asyncio.Event())
    await asyncio.sleep(0.01)
    trial = asyncio.create_task(gateway.ask())
    await upstream.until(lambda: len(upstream.open_calls) == 1)
    upstream.behaviour = Behaviour()

    async def served() -> bool:
        return bool((await gateway.ask()).status_code == 200)

    await until(served, 20)
    assert replica(gateway, upstream.url).breaker_state == "closed" and upstream.open_calls
    trial.cancel()


async def test_a_breaker_of_null_never_opens(start: Start, upstream: FakeUpstream) -> None:
    gateway = await start(breaker=None)
    upstream.behaviour = FAILS
    assert [(await gateway.ask()).status_code for _ in range(30)] == [500] * 30


# ---- another replica


@pytest.mark.parametrize("stream", [False, True])
async def test_a_retry_goes_to_another_replica(upstream: FakeUpstream, other: FakeUpstream, stream: bool) -> None:
    upstream.behaviour = Behaviour(before_head="reset")
    async with pair(upstream.url, other.url, breaker=None, health={"interval": None}) as gateway:
        for _ in range(12):
            assert (await gateway.ask(n=3, stream=stream)).status_code == 200
    assert upstream.calls, "it was tried"
    assert len(other.calls) == 36, "and no leg was tried there twice"


@pytest.mark.parametrize("stream", [False, True])
async def test_so_it_does_where_no_connection_comes_about(upstream: FakeUpstream, stream: bool) -> None:
    alone = {"breaker": None, "health": {"interval": None}, "timeouts": {"connect": 0.2}}
    with says_nothing() as gone:
        async with pair(gone, upstream.url, **alone) as gateway:
            for _ in range(3):
                assert (await gateway.ask(n=3, stream=stream)).status_code == 200
        async with pair(gone, **alone) as gateway:
            late = await gateway.ask(n=3, stream=stream)
            assert (late.status_code, envelope(late)["code"]) == (504, "upstream_timeout")
    assert len(upstream.calls) == 9


async def test_a_retry_goes_where_there_is_one_replica_only(start: Start, upstream: FakeUpstream) -> None:
    gateway = await start()
    upstream.script(Behaviour(before_head="reset"))
    assert (await gateway.ask()).status_code == 200 and len(upstream.calls) == 2


@pytest.mark.parametrize("code", [429, 503, 529])
async def test_a_replica_that_asks_to_be_left_alone_is_and_another_is_not_waited_for(
    upstream: FakeUpstream, other: FakeUpstream, code: int
) -> None:
    upstream.behaviour = Behaviour(status=code, headers={"Retry-After": "3600"})
    async with pair(upstream.url, other.url, health={"interval": None}, breaker=None) as gateway:
        for _ in range(12):
            assert (await gateway.ask()).status_code == 200
        assert len(upstream.calls) == 1 and len(other.calls) == 12
        other.behaviour = upstream.behaviour
        refused = await gateway.ask()
        assert refused.status_code == code and refused.headers["retry-after"] == "3600"


async def test_legs_that_wait_for_room_go_where_siblings_found_some(
    upstream: FakeUpstream, other: FakeUpstream
) -> None:
    """The replica that turns everybody away is never busy."""
    room, taken = Behaviour(pause=0.01), list[Any]()
    upstream.behaviour = Behaviour(status=429)

    def choose(seen: Any) -> Behaviour:
        if sum(one.closed is None for one in taken) >= 2:
            return Behaviour(status=429)
        taken.append(seen)
        return room

    other.choose = choose
    async with pair(upstream.url, other.url, health={"interval": None}, retries={"budget": 1}) as gateway:
        answer = await gateway.ask(n=12, seed=1)
        assert [choice["message"]["content"] for choice in answer.json()["choices"]] == [said(1 + i) for i in range(12)]
        assert len(taken) == 12


async def test_one_conversation_stays_on_one_replica(upstream: FakeUpstream, other: FakeUpstream) -> None:
    async with pair(upstream.url, other.url, balance="prefix_affinity", health={"interval": None}) as gateway:
        for number in range(12):
            messages = [{"role": "user", "content": f"question {number}"}]
            for turn in range(3):
                assert (await gateway.ask(messages=messages)).status_code == 200
                messages += [{"role": "assistant", "content": "so"}, {"role": "user", "content": f"and {turn}?"}]
    assert len(upstream.calls) % 3 == len(other.calls) % 3 == 0
    assert upstream.calls and other.calls


# ---- looks


@pytest.mark.parametrize("stream", [False, True])
async def test_S10_calls_that_wait_at_a_server_that_stands_still_are_tried_elsewhere(
    upstream: FakeUpstream, stream: bool
) -> None:
    async with raw_server(stand_still) as stopped, pair(stopped, upstream.url, health=FAST) as gateway:
        async with asyncio.timeout(20):  # the calls' own limit is 120 s
            answers = await asyncio.gather(*(gateway.ask(n=2, stream=stream) for _ in range(6)))
            assert [answer.status_code for answer in answers] == [200] * 6
            await until(lambda: replica(gateway, stopped).health.down, 20)
            assert (await gateway.ask(n=4)).status_code == 200
        assert replica(gateway, stopped).begun > 0 == replica(gateway, stopped).legs
        assert replica(gateway, stopped).up is False
        assert await gateway.metric('nproxy_retries_total{reason="down",upstream="pair"}') > 0


async def test_what_passes_through_is_tried_elsewhere_too(upstream: FakeUpstream) -> None:
    settings = {"health": FAST, "models": ["m"]}
    async with raw_server(stand_still) as stopped, pair(stopped, upstream.url, **settings) as gateway:
        async with asyncio.timeout(20):
            asked = (gateway.post({"model": "m"}, "/v1/embeddings") for _ in range(4))
            assert {answer.status_code for answer in await asyncio.gather(*asked)} == {200}


async def test_the_log_says_why_a_replica_gets_no_calls(
    upstream: FakeUpstream, other: FakeUpstream, caplog: pytest.LogCaptureFixture
) -> None:
    def told(message: str) -> list[tuple[str, str]]:
        records = [record for record in caplog.records if record.getMessage() == message]
        return [(record.levelname, vars(record)["fields"]["why"]) for record in records]

    caplog.set_level("INFO")
    upstream.list_fails, upstream.behaviour = True, FAILS
    async with pair(upstream.url, other.url, health=FAST, breaker={"in_a_row": 1}) as gateway:
        await until(lambda: bool(told("a replica is down")), 20)
        upstream.list_fails = False
        await until(lambda: bool(told("a replica is up")), 20)
        other.behaviour = FAILS
        await until(lambda: _has_failed(gateway), 20)
    assert told("a replica is down")[0] == ("WARNING", "/v1/models answered 500.")
    assert told("a replica is up")[0] == ("INFO", "/v1/models answered 200.")
    assert {*told("a replica's circuit breaker is open")} == {("WARNING", "status 500")}


async def test_the_log_says_that_a_breaker_closed(
    start: Start, upstream: FakeUpstream, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nproxy.upstreams.upstream.TOLD_SECONDS", 0.0)
    caplog.set_level("INFO", logger="nproxy.upstreams")
    gateway = await start(breaker={"in_a_row": 1}, retries={"per_leg": 0})
    for behaviour in (FAILS, Behaviour(), Behaviour(), FAILS):
        upstream.behaviour = behaviour
        await gateway.ask()
    told = [record for record in caplog.records if "circuit breaker" in record.getMessage()]
    assert [(record.levelname, record.getMessage()) for record in told] == [
        ("WARNING", "a replica's circuit breaker is open"),
        ("INFO", "a replica's circuit breaker is closed"),
        ("WARNING", "a replica's circuit breaker is open"),
    ]
    assert {vars(record)["fields"]["replica"] for record in told} == {upstream.url}


async def _has_failed(gateway: Gateway) -> bool:
    return (await gateway.ask()).status_code == 500


async def test_looks_that_fail_everywhere_are_not_believed(upstream: FakeUpstream, other: FakeUpstream) -> None:
    upstream.list_fails = other.list_fails = True
    async with pair(upstream.url, other.url, health=FAST) as gateway:
        await until(lambda: all(one.health.down for one in gateway.app.upstreams.all[0].gate.replicas), 20)
        for _ in range(4):
            assert (await gateway.ask(n=2)).status_code == 200
        assert (await gateway.client.get("/ready")).status_code == 200, "they answer"


async def test_one_that_is_down_is_asked_if_the_other_has_just_gone(
    upstream: FakeUpstream, other: FakeUpstream
) -> None:
    """Checks show neither yet: that the one is back (here they are wrong all the time), and that the other went."""
    upstream.list_fails = True
    async with pair(upstream.url, other.url, health={**FAST, "down_after": 3}) as gateway:
        await until(lambda: replica(gateway, upstream.url).health.down, 20)
        assert (await gateway.ask(n=2)).status_code == 200
        assert not upstream.calls
        await other.stop()
        assert (await gateway.ask(n=2)).status_code == 200
        assert len(upstream.calls) == 2 and not replica(gateway, other.url).health.down


async def test_a_replica_that_was_down_comes_back_with_its_looks(upstream: FakeUpstream, other: FakeUpstream) -> None:
    upstream.list_fails = True
    async with pair(upstream.url, other.url, health=FAST) as gateway:
        await until(lambda: replica(gateway, upstream.url).health.down, 20)
        for _ in range(8):
            assert (await gateway.ask()).status_code == 200
        assert not upstream.calls
        upstream.list_fails = False
        await until(lambda: not replica(gateway, upstream.url).health.down, 20)
        await until(lambda: _reaches(gateway, upstream), 20)


async def _reaches(gateway: Gateway, upstream: FakeUpstream) -> bool:
    assert (await gateway.ask()).status_code == 200
    return bool(upstream.calls)


async def test_nobody_looks_at_a_replica_that_has_no_substitute(start: Start, upstream: FakeUpstream) -> None:
    gateway = await start(health=FAST)
    assert not gateway.app.upstreams.all[0].watched
    async with pair(upstream.url, "http://127.0.0.1:9/v1") as two:
        assert two.app.upstreams.all[0].watched


async def test_one_without_a_substitute_is_looked_at_while_it_cannot_be_reached(tmp_path: Path) -> None:
    """Else it would count as down until the next call, which may be long in coming."""
    place = str(tmp_path / "socket")
    settings = {"name": "only", "replicas": [f"unix:{place}"], "health": FAST}
    async with gateway_for({"upstreams": [settings]}) as gateway:
        assert (await gateway.ask()).status_code == 502
        (only,) = gateway.app.upstreams.all[0].gate.replicas
        assert only.up is False
        async with FakeUpstream(unix=place) as late:
            await until(lambda: only.up is True, 20)
            assert not late.calls
            seen = len(late.requests)
            await asyncio.sleep(0.5)
            assert len(late.requests) == seen, "now calls show it"


async def test_ready_goes_by_what_is_known(upstream: FakeUpstream, other: FakeUpstream) -> None:
    async with pair(upstream.url, other.url, health={"interval": 3600}) as gateway:
        await until(lambda: all(one.health.answered for one in gateway.app.upstreams.all[0].gate.replicas), 20)
        seen = len(upstream.requests) + len(other.requests)
        for _ in range(5):
            assert (await gateway.client.get("/ready")).status_code == 200
        assert len(upstream.requests) + len(other.requests) == seen


async def test_without_any_replica_the_answer_is_503_at_once() -> None:
    upstream = {"name": "guests", "replicas": [], "models": ["m"]}
    async with gateway_for({"upstreams": [upstream], "admin": {"port": 0}}) as gateway:
        refused = await gateway.ask(model="m")
        assert refused.status_code == 503 and envelope(refused)["code"] == "upstream_unavailable"
        assert int(refused.headers["retry-after"]) >= 1


async def test_settings_change_while_it_runs(upstream: FakeUpstream, other: FakeUpstream) -> None:
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(pair(upstream.url, other.url, health=FAST, breaker=NEVER))
        (one,) = gateway.app.upstreams.all
        await until(lambda: all(each.health.answered for each in one.gate.replicas), 20)
        kept = one.gate.replicas[0].breaker
        one.reconfigure(one.settings.model_copy(update={"health": one.settings.health.model_copy()}))
        assert one.gate.replicas[0].breaker is kept
        one.reconfigure(one.settings.model_copy(update={"breaker": None}))
        assert one.gate.replicas[0].breaker is not kept and one.gate.replicas[0].health.answered
