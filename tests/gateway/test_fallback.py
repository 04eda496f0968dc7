"""Upstreams to fall back to: who is asked, in which order, and what the client sees of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from nproxy.gateway.admission import client
from nproxy.gateway.admission.messages import Message, Move
from nproxy.gateway.driver import Drive
from nproxy.gateway.passthrough import handler
from nproxy.gateway.passthrough.upload import REPEATABLE_BYTES
from nproxy.openai.errors import not_ready
from nproxy.openai.wire import PING
from tests.fakes.upstream import MODEL, Behaviour, FakeUpstream, raw_server
from tests.gateway.conftest import Gateway, Stream, envelope, gateway_for
from tests.waiting import until

DOWN = Behaviour(status=503)


@pytest.fixture
async def spare() -> AsyncIterator[FakeUpstream]:
    async with FakeUpstream(Behaviour(n="native")) as server:
        yield server


@asynccontextmanager
async def behind(*upstreams: dict[str, Any], **config: Any) -> AsyncIterator[Gateway]:
    settings = [{"n": "fanout", "health": {"interval": None}, "retries": {"per_leg": 0}, **one} for one in upstreams]
    async with gateway_for({"upstreams": settings, **config}) as gateway:
        yield gateway


def main(upstream: FakeUpstream, *fallback: str, **settings: Any) -> dict[str, Any]:
    return {"name": "main", "replicas": [upstream.url], "models": [MODEL], "fallback": list(fallback), **settings}


@pytest.mark.parametrize("bad", [DOWN, Behaviour(before_head="reset"), Behaviour(status=529), Behaviour(status=429)])
@pytest.mark.parametrize("stream", [False, True])
async def test_the_next_upstream_answers_by_its_own_plan(
    upstream: FakeUpstream, spare: FakeUpstream, bad: Behaviour, stream: bool
) -> None:
    upstream.behaviour = bad
    other = {"name": "spare", "replicas": [spare.url], "n": "native"}
    async with behind(main(upstream, "spare"), other) as gateway:
        answer = await gateway.ask(n=3, stream=stream)
        assert answer.status_code == 200 and 1 <= len(upstream.calls) <= 3 and len(spare.calls) == 1
        assert answer.headers["x-nproxy-upstream"] == "spare"
        assert (answer.headers["x-nproxy-mode"], answer.headers["x-nproxy-legs"]) == ("native", "1")
        if not stream:
            assert [choice["index"] for choice in answer.json()["choices"]] == [0, 1, 2]
        assert await gateway.metric('nproxy_fallbacks_total{to="spare",upstream="main"}') == 1
        assert await gateway.metric("nproxy_inflight_choices") == 0


async def test_at_the_end_of_a_drain_no_other_upstream_is_asked(
    upstream: FakeUpstream, spare: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes when one upstream is given up and the other one is not asked yet."""
    upstream.behaviour = DOWN
    run = Drive.run

    async def and_end(drive: Drive) -> None:
        await run(drive)
        gateway.app.end(not_ready("The gateway is shutting down."))

    monkeypatch.setattr(Drive, "run", and_end)
    async with behind(main(upstream, "spare"), {"name": "spare", "replicas": [spare.url]}) as gateway:
        answer = await gateway.ask()
        assert answer.status_code == 503 and "shutting down" in envelope(answer)["message"]
        assert len(upstream.calls) == 1 and not spare.calls


@pytest.mark.parametrize("status", [400, 401, 402, 422, 500])
async def test_an_answer_is_an_answer(upstream: FakeUpstream, spare: FakeUpstream, status: int) -> None:
    upstream.behaviour = Behaviour(status=status)
    async with behind(main(upstream, "spare"), {"name": "spare", "replicas": [spare.url]}) as gateway:
        assert (await gateway.ask()).status_code == status and not spare.calls


async def test_metrics_tell_the_mode_that_the_client_reads_where_nobody_answers(
    upstream: FakeUpstream, spare: FakeUpstream
) -> None:
    """It was to be one call for all, was refused that, and then one for each, in vain."""
    upstream.behaviour = DOWN
    upstream.script(Behaviour(n="refuse"))
    lacks = {"name": "lacks", "replicas": [spare.url], "models": ["another"]}
    async with behind(main(upstream, "lacks", n="native"), lacks) as gateway:
        refused = await gateway.ask(n=3)
        assert refused.status_code == 503 and len(upstream.calls) > 1
        mode = refused.headers["x-nproxy-mode"]
        assert mode == "fanout"
        labels = f'code="503",endpoint="chat/completions",mode="{mode}",model="{MODEL}",upstream="main"'
        assert await gateway.metric(f"nproxy_requests_total{{{labels}}}") == 1


async def test_nobody_is_asked_for_models_before_it_is_needed(upstream: FakeUpstream, spare: FakeUpstream) -> None:
    async with behind(main(upstream, "spare"), {"name": "spare", "replicas": [spare.url]}) as gateway:
        assert (await gateway.ask()).status_code == 200
        assert [seen.path for seen in spare.requests] == []


async def test_only_those_that_have_the_model(upstream: FakeUpstream, spare: FakeUpstream) -> None:
    upstream.behaviour = DOWN
    lacks = {"name": "lacks", "replicas": [spare.url], "models": ["another"]}
    async with behind(main(upstream, "lacks"), lacks) as gateway:
        refused = await gateway.ask()
        assert refused.status_code == 503 and not spare.calls
        assert refused.headers["x-nproxy-upstream"] == "main"


@pytest.mark.parametrize("behind_main", [False, True])
async def test_the_last_one_is_waited_for_as_if_it_were_the_only_one(
    upstream: FakeUpstream, spare: FakeUpstream, behind_main: bool
) -> None:
    """It asks for two seconds; then its only room is another request's."""
    upstream.behaviour = DOWN
    last = {"name": "spare", "replicas": [spare.url], "models": [MODEL], "retries": {"per_leg": 1}}
    async with behind(*([main(upstream, "spare")] if behind_main else []), last) as gateway:
        spare.script(Behaviour(status=429, headers={"retry-after": "1.5"}))
        began = time.monotonic()
        assert (await gateway.ask()).status_code == 200 and time.monotonic() - began >= 1.5
        spare.script(Behaviour(pause=0.3), *[Behaviour(status=429)] * 3)
        first = asyncio.create_task(gateway.ask())
        await until(lambda: len(spare.calls) == 3)
        assert (await gateway.ask()).status_code == 200 and (await first).status_code == 200


@pytest.mark.parametrize("why_not", ["lacks the model", "not in order"])
async def test_one_that_cannot_take_it_is_no_reason_not_to_wait(
    upstream: FakeUpstream, spare: FakeUpstream, why_not: str
) -> None:
    models = ["another"] if why_not == "lacks the model" else [MODEL]
    other = {"name": "spare", "replicas": [spare.url], "models": models}
    async with behind(main(upstream, "spare", retries={"per_leg": 1}), other) as gateway:
        if why_not == "not in order":
            gateway.app.upstreams.by_name["spare"].gate.replicas[0].draining = True
        upstream.script(Behaviour(status=429, headers={"retry-after": "1.5"}))
        began = time.monotonic()
        assert (await gateway.ask()).status_code == 200 and time.monotonic() - began >= 1.5
        assert not spare.calls


async def test_the_model_goes_by_the_name_that_each_knows(upstream: FakeUpstream, spare: FakeUpstream) -> None:
    upstream.behaviour = DOWN
    one = main(upstream, "spare", models={"m": "theirs"})
    async with behind(one, {"name": "spare", "replicas": [spare.url], "models": {"m": "ours"}}) as gateway:
        assert (await gateway.ask(model="m")).json()["model"] == "m"
        assert (upstream.calls[0].body["model"], spare.calls[0].body["model"]) == ("theirs", "ours")


async def test_each_is_asked_once_in_the_order_of_the_lists(upstream: FakeUpstream, spare: FakeUpstream) -> None:
    async with FakeUpstream(DOWN) as third:
        upstream.behaviour = spare.behaviour = DOWN
        circle = [
            main(upstream, "spare"),
            {"name": "third", "replicas": [third.url], "fallback": ["main", "spare"]},
            {"name": "spare", "replicas": [spare.url], "fallback": ["main", "third"]},
        ]
        async with behind(*circle) as gateway:
            refused = await gateway.ask()
            assert refused.status_code == 503 and refused.headers["x-nproxy-upstream"] == "third"
            assert [len(one.calls) for one in (upstream, spare, third)] == [1, 1, 1]
            assert await gateway.metric('nproxy_fallbacks_total{to="third",upstream="spare"}') == 1


@pytest.mark.parametrize("code", [401, 402, 403])
async def test_another_is_asked_where_a_key_of_nproxys_own_is_refused(
    upstream: FakeUpstream, spare: FakeUpstream, code: int
) -> None:
    upstream.behaviour = Behaviour(status=code)
    one = main(upstream, "spare", api_key="revoked")
    async with behind(one, {"name": "spare", "replicas": [spare.url]}) as gateway:
        labels = f'{{api_key="own",code="{code}",replica="{upstream.url}",upstream="main"}}'
        assert await gateway.metric("nproxy_replica_errors_total" + labels) == 0, "a counter is seen to grow from 0 on"
        assert (await gateway.ask()).status_code == 200
        assert await gateway.metric("nproxy_replica_errors_total" + labels) == 1
    async with behind(main(upstream, "spare"), {"name": "spare", "replicas": [spare.url]}) as gateway:
        assert (await gateway.ask()).status_code == code, "the client's own key is the client's business"
        labels = f'{{api_key="other",code="{code}",replica="{upstream.url}",upstream="main"}}'
        assert await gateway.metric("nproxy_replica_errors_total" + labels) == 1


async def test_who_comes_to_a_full_one_where_others_wait_is_answered_by_the_next(
    upstream: FakeUpstream, spare: FakeUpstream
) -> None:
    hold = asyncio.Event()
    upstream.choose = lambda call: Behaviour(hold=hold) if call is upstream.calls[0] else Behaviour(status=429)
    one = main(upstream, "spare", retries={"per_leg": 1})
    async with behind(one, {"name": "spare", "replicas": [spare.url]}) as gateway, asyncio.TaskGroup() as group:
        many = group.create_task(gateway.ask(n=3))
        await until(lambda: gateway.app.upstreams.by_name["main"].gate.waiting == 2)
        assert (await gateway.ask()).headers["x-nproxy-upstream"] == "spare" and not many.done()
        upstream.choose = None
        hold.set()
    assert many.result().headers["x-nproxy-upstream"] == "main"


async def test_one_without_a_replica_in_order_is_passed_over(upstream: FakeUpstream, spare: FakeUpstream) -> None:
    upstream.behaviour = DOWN
    one = main(upstream, "spare", breaker={"in_a_row": 2, "open": 3600})
    async with behind(one, {"name": "spare", "replicas": [spare.url]}) as gateway:
        for _ in range(5):
            assert (await gateway.ask()).status_code == 200
        assert len(upstream.calls) == 2 and len(spare.calls) == 5
        assert await gateway.metric('nproxy_fallbacks_total{to="spare",upstream="main"}') == 5
        spare.behaviour = DOWN
        refused = await gateway.ask()
        assert refused.status_code == 503 and refused.headers["x-nproxy-upstream"] == "spare"


async def test_one_that_is_passed_over_is_no_reason_to_call_the_request_wrong(
    upstream: FakeUpstream, spare: FakeUpstream
) -> None:
    upstream.behaviour = DOWN
    one = main(upstream, "spare", breaker={"in_a_row": 1, "open": 3600})
    narrow = {"name": "spare", "replicas": [spare.url], "max_inflight": 2}
    async with behind(one, narrow) as gateway:
        assert (await gateway.ask(n=2)).headers["x-nproxy-upstream"] == "spare"
        assert (await gateway.ask(n=2)).headers["x-nproxy-upstream"] == "spare"
        refused = await gateway.ask(n=3)
        assert refused.status_code == 503 and refused.headers["x-nproxy-upstream"] == "main"


async def test_where_the_upstream_cannot_do_it_the_client_is_told_and_no_other_is_asked(
    upstream: FakeUpstream, spare: FakeUpstream
) -> None:
    one = main(upstream, "spare")
    async with behind(one, {"name": "spare", "replicas": [spare.url], "n": "native"}) as gateway:
        refused = await gateway.ask(n=2, use_beam_search=True)
        assert refused.status_code == 400 and not upstream.calls and not spare.calls
        assert (await gateway.ask()).status_code == 200
        assert 'nproxy_fallbacks_total{to="spare",upstream="main"} 0.0' in (await gateway.client.get("/metrics")).text


async def test_one_that_cannot_do_it_is_passed_over(upstream: FakeUpstream, spare: FakeUpstream) -> None:
    upstream.behaviour = DOWN
    async with FakeUpstream(Behaviour(n="native")) as third:
        one = main(upstream, "spare", "third", n="native", breaker={"in_a_row": 1, "open": 3600})
        last = {"name": "third", "replicas": [third.url], "n": "native"}
        async with behind(one, {"name": "spare", "replicas": [spare.url]}, last) as gateway:
            for _ in range(2):  # when it has failed, and when it is known to be down
                answer = await gateway.ask(n=2, use_beam_search=True)
                assert answer.headers["x-nproxy-upstream"] == "third" and not spare.calls


async def test_a_sole_replica_is_looked_at_where_there_is_a_fallback(
    upstream: FakeUpstream, spare: FakeUpstream
) -> None:
    upstream.list_fails = True
    one = main(upstream, "spare", health={"interval": 0.05, "down_after": 1})
    async with behind(one, {"name": "spare", "replicas": [spare.url]}) as gateway:
        await until(lambda: gateway.app.upstreams.all[0].gate.replicas[0].health.down, 20)
        assert (await gateway.ask()).headers["x-nproxy-upstream"] == "spare"
        spare_only = len(spare.calls)
        await spare.stop()
        assert (await gateway.ask()).headers["x-nproxy-upstream"] == "spare"
        assert spare_only == 1
        await spare.__aenter__()


async def test_a_stream_that_has_begun_stays_where_it_is(upstream: FakeUpstream, spare: FakeUpstream) -> None:
    upstream.behaviour = Behaviour(end_after=2, end="reset")
    async with behind(main(upstream, "spare"), {"name": "spare", "replicas": [spare.url]}) as gateway:
        stream = await gateway.stream()
        assert stream.status == 200 and "error" in stream.chunks[-1] and not spare.calls


SOON = {"stream": {"headers_after_seconds": 0.05}}
HANGS = {"timeouts": {"first_event": 0.3}}


async def test_a_stream_that_has_only_pinged_may_go_elsewhere(upstream: FakeUpstream, spare: FakeUpstream) -> None:
    """Its head names the first upstream; metrics and log name the one that answered."""
    upstream.behaviour = Behaviour(hold=asyncio.Event())
    async with behind(main(upstream, "spare", **HANGS), {"name": "spare", "replicas": [spare.url]}, **SOON) as gateway:
        stream = await gateway.stream(n=2)
        assert stream.status == 200 and stream.raw.startswith(2 * PING + b"data: ")
        assert stream.raw.count(PING) == 2, "one with the head, one between the upstreams"
        assert stream.raw.endswith(b"data: [DONE]\n\n") and len({chunk["id"] for chunk in stream.chunks}) == 1
        assert sorted(stream.finishes) == [0, 1]
        assert stream.headers["x-nproxy-upstream"] == "main"
        labels = f'code="200",endpoint="chat/completions",mode="fanout",model="{MODEL}",upstream="spare"'
        assert await gateway.metric(f"nproxy_requests_total{{{labels}}}") == 1
        assert await gateway.metric('nproxy_fallbacks_total{to="spare",upstream="main"}') == 1
        assert await gateway.metric("nproxy_inflight_choices") == 0


@pytest.mark.parametrize("has_model", [True, False])
async def test_a_stream_of_pings_that_nobody_answers_ends_in_an_event(
    upstream: FakeUpstream, spare: FakeUpstream, has_model: bool
) -> None:
    upstream.behaviour, spare.behaviour = Behaviour(hold=asyncio.Event()), DOWN
    models = [MODEL] if has_model else ["another"]
    other = {"name": "spare", "replicas": [spare.url], "models": models}
    async with behind(main(upstream, "spare", **HANGS), other, **SOON) as gateway:
        stream = await gateway.stream()
        assert stream.status == 200 and stream.raw.startswith(PING) and len(stream.chunks) == 1
        assert stream.chunks[0]["error"]["code"] == (None if has_model else "upstream_timeout")
        asked = "spare" if has_model else "main"
        outcome = "status" if has_model else "timeout"
        labels = f'endpoint="chat/completions",model="{MODEL}",outcome="{outcome}",upstream="{asked}"'
        assert await gateway.metric(f"nproxy_broken_answers_total{{{labels}}}") == 1


@asynccontextmanager
async def between_two_upstreams(
    upstream: FakeUpstream, spare: FakeUpstream
) -> AsyncIterator[tuple[Gateway, asyncio.Task[Stream]]]:
    """A stream of pings whose first upstream was given up, while the other one is full."""
    upstream.behaviour, spare.behaviour = Behaviour(hold=asyncio.Event()), Behaviour(hold=asyncio.Event())
    full = {"name": "full", "replicas": [spare.url], "models": [MODEL, "m"], "max_inflight": 1}
    pings = {"stream": {"headers_after_seconds": 0.05, "ping_seconds": 0.2}}
    async with behind(main(upstream, "full", **HANGS), full, **pings) as gateway, asyncio.timeout(20):
        holds = asyncio.create_task(gateway.ask(model="m"))
        await spare.until(lambda: len(spare.open_calls) == 1)
        stream = asyncio.create_task(gateway.stream())
        await until(lambda: gateway.app.admission.waiting == 1, 20)
        yield gateway, stream
        spare.behaviour.let_go()
        await holds


async def test_a_stream_is_pinged_between_two_upstreams(upstream: FakeUpstream, spare: FakeUpstream) -> None:
    async with between_two_upstreams(upstream, spare) as (_, asked):
        await asyncio.sleep(1)
        spare.behaviour.let_go()
        stream = await asked
        assert stream.raw.count(PING) >= 6 and stream.raw.endswith(b"data: [DONE]\n\n")  # ten, and few before


async def test_at_the_end_of_a_drain_a_stream_of_pings_ends_in_an_event(
    upstream: FakeUpstream, spare: FakeUpstream
) -> None:
    async with between_two_upstreams(upstream, spare) as (gateway, asked):
        gateway.app.end(not_ready("The gateway is shutting down."))
        stream = await asked
        assert stream.raw.startswith(PING) and "shutting down" in stream.chunks[-1]["error"]["message"]
        labels = f'endpoint="chat/completions",model="{MODEL}",outcome="ended",upstream="main"'
        assert await gateway.metric(f"nproxy_broken_answers_total{{{labels}}}") == 1


async def test_what_passes_through_falls_back_while_its_body_is_here(
    upstream: FakeUpstream, spare: FakeUpstream
) -> None:
    gone = {"name": "main", "replicas": ["http://127.0.0.1:9/v1"], "models": ["m"], "fallback": ["spare"]}
    aliased = {"name": "spare", "replicas": [spare.url], "models": {"m": "ours"}}
    async with behind(gone, aliased) as gateway:
        answer = await gateway.post({"model": "m", "input": "x"}, "/v1/embeddings")
        assert answer.status_code == 200 and answer.headers["x-nproxy-upstream"] == "spare"
        assert '"ours"' in answer.json()["body"]
        assert await gateway.metric('nproxy_fallbacks_total{to="spare",upstream="main"}') == 1


@pytest.mark.parametrize("status", [200, 400, 402, 500])
async def test_an_answer_to_what_passes_through_is_an_answer(spare: FakeUpstream, status: int) -> None:
    async def says(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(b"HTTP/1.1 %d So\r\nContent-Length: 0\r\n\r\n" % status)

    async with raw_server(says) as url:
        one = {"name": "main", "replicas": [url], "models": ["m"], "fallback": ["spare"]}
        async with behind(one, {"name": "spare", "replicas": [spare.url], "models": ["m"]}) as gateway:
            answer = await gateway.post({"model": "m"}, "/v1/embeddings")
            assert answer.status_code == status and not spare.requests


@pytest.mark.parametrize(("status", "key"), [(429, None), (503, None), (401, "revoked"), (402, "spent")])
async def test_where_it_cannot_be_had_what_passes_through_goes_on(
    spare: FakeUpstream, status: int, key: str | None
) -> None:
    async def says(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(b"HTTP/1.1 %d No\r\nContent-Length: 0\r\n\r\n" % status)

    async with raw_server(says) as url:
        one = {"name": "main", "replicas": [url], "models": ["m"], "fallback": ["spare"]}
        if key is not None:
            one["api_key"] = key
        async with behind(one, {"name": "spare", "replicas": [spare.url], "models": ["m"]}) as gateway:
            assert (await gateway.post({"model": "m"}, "/v1/embeddings")).status_code == 200
            api_key = "other" if key is None else "own"
            labels = f'{{api_key="{api_key}",code="{status}",replica="{url}",upstream="main"}}'
            assert await gateway.metric("nproxy_replica_errors_total" + labels) == 1


@pytest.mark.parametrize(("more", "elsewhere"), [(0, True), (REPEATABLE_BYTES, False)])
async def test_what_has_begun_to_go_up_goes_nowhere_else(spare: FakeUpstream, more: int, elsewhere: bool) -> None:
    """A short form is read whole, and can be sent again."""

    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        read = b""
        while b"--b--" not in read:
            read += await reader.read(1 << 16)
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")

    form = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n'
    form += b"--b\r\nContent-Disposition: form-data; name=file\r\n\r\n" + b"x" * more + b"\r\n--b--\r\n"
    async with raw_server(refuses) as url:
        one = {"name": "main", "replicas": [url], "models": ["m"], "fallback": ["spare"]}
        async with behind(one, {"name": "spare", "replicas": [spare.url], "models": ["m"]}) as gateway:
            kind = {"content-type": "multipart/form-data; boundary=b"}
            answer = await gateway.client.post("/v1/audio/transcriptions", content=form, headers=kind)
            said = answer.status_code, answer.headers["x-nproxy-upstream"]
            assert said == ((200, "spare") if elsewhere else (503, "main"))
            assert bool(spare.requests) == elsewhere


async def test_what_passes_through_goes_by_an_upstream_without_room(
    upstream: FakeUpstream, spare: FakeUpstream
) -> None:
    gone = {"name": "main", "replicas": ["http://127.0.0.1:9/v1"], "models": ["m"], "fallback": ["full", "spare"]}
    full = {"name": "full", "replicas": [upstream.url], "models": ["m", MODEL], "max_inflight": 1}
    last = {"name": "spare", "replicas": [spare.url], "models": ["m"]}
    upstream.behaviour = Behaviour(hold=asyncio.Event())
    async with behind(gone, full, last, limits={"queue_seconds": 0.05}) as gateway:
        holds = asyncio.create_task(gateway.ask(model=MODEL))
        await upstream.until(lambda: len(upstream.open_calls) == 1)
        answer = await gateway.post({"model": "m"}, "/v1/embeddings")
        assert answer.status_code == 200 and answer.headers["x-nproxy-upstream"] == "spare"
        await spare.stop()
        refused = await gateway.post({"model": "m"}, "/v1/embeddings")
        assert refused.status_code == 502 and envelope(refused)["code"] == "upstream_unavailable"
        await spare.__aenter__()
        holds.cancel()


async def test_what_was_refused_holds_nothing_while_it_waits_for_the_next_upstream(upstream: FakeUpstream) -> None:
    refusals = iter([b"HTTP/1.1 503 No\r\nContent-Length: 4\r\n\r\nbusy"])

    async def says(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while await reader.readuntil(b"}"):
                writer.write(next(refusals, b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))

    full = {"name": "full", "replicas": [upstream.url], "models": ["m", MODEL], "max_inflight": 1}
    upstream.behaviour = Behaviour(hold=asyncio.Event())
    async with raw_server(says) as url:
        one = {"name": "main", "replicas": [url], "models": ["m"], "fallback": ["full"], "parallel": 1}
        async with behind(one, full) as gateway, asyncio.timeout(20):
            holds = asyncio.create_task(gateway.ask(model=MODEL))
            await upstream.until(lambda: len(upstream.open_calls) == 1)
            refused = asyncio.create_task(gateway.post({"model": "m"}, "/v1/embeddings"))
            await until(lambda: gateway.app.admission.waiting == 1, 20)
            answer = await gateway.post({"model": "m"}, "/v1/embeddings")
            assert answer.text == "ok" and answer.headers["x-nproxy-upstream"] == "main"
            upstream.behaviour.let_go()
            assert (await holds).status_code == 200
            assert (await refused).headers["x-nproxy-upstream"] == "full"


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        pytest.param(b"Content-Length: 4\r\n\r\nbusy", "busy", id="as it came"),
        pytest.param(b"Transfer-Encoding: chunked\r\n\r\n4\r\nbusy\r\n0\r\n\r\n", "busy", id="in chunks"),
        pytest.param(b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "", id="without a word"),
        pytest.param(b"Content-Length: 9\r\n\r\nbusy", None, id="never whole"),
        pytest.param(b"Content-Length: 2000000\r\n\r\n" + bytes(2_000_000), None, id="too long to keep"),
    ],
)
async def test_what_was_refused_and_found_no_other_upstream_gets_the_refusal(
    upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch, sent: bytes, shown: str | None
) -> None:
    async def says(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(b"HTTP/1.1 503 No\r\nRetry-After: 7\r\nX-Odd: 1\r\n" + sent)
        await reader.read()

    monkeypatch.setattr(handler, "ERROR_BODY_SECONDS", 0.2)
    full = {"name": "full", "replicas": [upstream.url], "models": ["m", MODEL], "max_inflight": 1}
    upstream.behaviour = Behaviour(hold=asyncio.Event())
    async with raw_server(says) as url:
        one = {"name": "main", "replicas": [url], "models": ["m"], "fallback": ["full"]}
        async with behind(one, full, limits={"queue_seconds": 0.05}) as gateway:
            holds = asyncio.create_task(gateway.ask(model=MODEL))
            await upstream.until(lambda: len(upstream.open_calls) == 1)
            refused = await gateway.post({"model": "m"}, "/v1/embeddings")
            assert refused.status_code == 503 and refused.headers["x-nproxy-upstream"] == "main"
            if shown is None:
                assert envelope(refused)["message"] == "The upstream answered 503 Service Unavailable."
            else:
                assert (refused.text, refused.headers["retry-after"], refused.headers["x-odd"]) == (shown, "7", "1")
            holds.cancel()


async def test_with_the_fallback_gone_too_the_last_error_is_told(upstream: FakeUpstream) -> None:
    upstream.behaviour = DOWN
    async with behind(main(upstream, "spare"), {"name": "spare", "replicas": ["http://127.0.0.1:9/v1"]}) as gateway:
        refused = await gateway.ask()
        assert refused.status_code == 502 and envelope(refused)["code"] == "upstream_unavailable"
        assert refused.headers["x-nproxy-upstream"] == "spare"
        async with asyncio.timeout(5):
            await gateway.app.idle()


async def test_a_ledger_that_stands_still_is_not_asked_for_one_upstream_after_the_other(
    upstream: FakeUpstream, spare: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the parent of several workers is stopped: the client waits once, and is told why the first one failed."""
    monkeypatch.setattr(client, "ANSWER_SECONDS", 0.05)
    upstream.behaviour = DOWN
    others = [{"name": name, "replicas": [spare.url]} for name in ("one", "two")]
    async with behind(main(upstream, "one", "two"), *others, limits={"queue_seconds": 0}) as gateway:
        ledger, moves = gateway.app.admission._transport, list[str]()
        send = ledger.send

        def stand_still_for_moves(message: Message) -> None:
            if isinstance(message, Move):
                moves.append(message.upstream)
            else:
                send(message)

        monkeypatch.setattr(ledger, "send", stand_still_for_moves)
        refused = await gateway.ask()
        assert (refused.status_code, refused.headers["x-nproxy-upstream"]) == (503, "main")
        assert moves == ["one"] and not spare.calls
        assert await gateway.metric("nproxy_inflight_choices") == 0
