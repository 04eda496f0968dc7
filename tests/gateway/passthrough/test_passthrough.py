"""Endpoints that go to an upstream as they are: limits, failures, routing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from nproxy.choices.events import FailureKind
from nproxy.config import digest_of
from tests.fakes.upstream import FakeUpstream, raw_server
from tests.gateway.conftest import Gateway, Start, envelope, gateway_for, upstream_settings
from tests.gateway.raw import apart, exchange


async def test_paths_of_the_configuration(start: Start, upstream: FakeUpstream) -> None:
    listed = await start(config={"passthrough": {"paths": ["/v1/files"]}})
    assert (await listed.client.get("/v1/files/x")).status_code == 200
    assert (await listed.client.get("/v1/embeddings")).status_code == 404
    everything = await start(config={"passthrough": {"paths": "all"}})
    assert (await everything.client.get("/anything/at?all")).json()["target"] == "/anything/at?all"
    assert (await everything.client.get("/health")).json() == {"status": "ok"}


async def test_an_upload_over_the_limit(start: Start, upstream: FakeUpstream) -> None:
    gateway = await start(config={"limits": {"body_mib": 0.01}})
    announced = await gateway.client.post("/v1/embeddings", content=b"x" * 20_000)
    assert announced.status_code == 413
    assert upstream.requests == []

    async def drip() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 1000

    unannounced = await gateway.client.post("/v1/embeddings", content=drip())
    assert unannounced.status_code == 413
    envelope(unannounced)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/chat/completions"])
async def test_a_body_as_long_as_the_limit(start: Start, upstream: FakeUpstream, path: str) -> None:
    gateway = await start(config={"limits": {"body_mib": 1 / 1024}})
    body = json.dumps({"model": "fake-model", "messages": [{"role": "user", "content": "x"}]}).encode().ljust(1024)

    async def drip() -> AsyncIterator[bytes]:
        for begin in range(0, 1024, 256):
            yield body[begin : begin + 256]
            await asyncio.sleep(0.02)

    for content in (body, drip()):
        assert (await gateway.client.post(path, content=content)).status_code != 413
    assert [seen.method for seen in upstream.requests].count("POST") == 2


UPLOAD = b"POST /v1/audio/speech HTTP/1.1\r\nHost: h\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
BROKEN = b"no size\r\n"
TOO_LONG = b"4e20\r\n" + b"x" * 20_000 + b"\r\n0\r\n\r\n"


@pytest.mark.parametrize(("more", "status"), [(BROKEN, 400), (TOO_LONG, 413)])
@pytest.mark.parametrize("answered", [False, True])
async def test_no_server_is_blamed_for_an_upload_that_breaks_off(more: bytes, status: int, answered: bool) -> None:
    """Its breaker counts nothing, and its other connections are kept. answered: its answer had begun."""
    began = asyncio.Event()

    async def serves(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            if head.startswith(b"POST"):
                await reader.readuntil(b"hello\r\n")
                if answered:
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nbegun")
                began.set()
                await reader.read()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async def uploads(gateway: Gateway) -> None:
        began.clear()
        reader, writer = await asyncio.open_connection(*gateway.address)
        writer.write(UPLOAD + b"5\r\nhello\r\n")
        await began.wait()
        if answered:
            await reader.readuntil(b"begun")
        writer.write(more)
        with suppress(ConnectionResetError):
            assert await reader.read() == b"" if answered else apart(await reader.read())[0] == status
        writer.close()

    async with raw_server(serves) as url:
        config = {"upstreams": [{"name": "u", "replicas": [url]}], "limits": {"body_mib": 0.01}}
        async with gateway_for(config) as gateway, asyncio.timeout(20):
            (replica,) = gateway.app.upstreams.all[0].gate.replicas
            for _ in range(6):
                await uploads(gateway)
            await gateway.app.idle()
            assert replica.breaker.closed
            assert (await gateway.client.get("/v1/responses/1")).text == "ok"
            await uploads(gateway)
            await gateway.app.idle()
            assert FailureKind.STALE not in replica.ended
            labels = {"endpoint": "passthrough", "upstream": "u", "model": "", "mode": "passthrough"}
            code = "499" if answered else str(status)
            value = gateway.app.metrics.registry.get_sample_value("nproxy_requests_total", {**labels, "code": code})
            assert value == 7


@pytest.mark.parametrize("sent", [b"5\r\nhello\r\n", b"5\r\nhello\r\n0\r\n\r\n"])
async def test_a_server_is_blamed_for_a_late_answer_only_if_it_has_the_whole_upload(sent: bytes) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with raw_server(silent) as url:
        config = {"upstreams": [{"name": "u", "replicas": [url], "timeouts": {"response": 0.1}}]}
        async with gateway_for(config) as gateway, asyncio.timeout(20):
            (replica,) = gateway.app.upstreams.all[0].gate.replicas
            for _ in range(5):
                reader, writer = await asyncio.open_connection(*gateway.address)
                writer.write(UPLOAD + sent)
                assert (await reader.readline()).startswith(b"HTTP/1.1 504")
                writer.close()
            assert replica.breaker.closed is (b"0\r\n\r\n" not in sent)


@pytest.mark.parametrize("said", ["application/x-www-form-urlencoded", "text/plain", "application/json", None])
async def test_a_body_is_json_whatever_is_said_of_it(upstream: FakeUpstream, said: str | None) -> None:
    """As curl says it of what follows `-d`: the upstream of the model that it names is asked."""
    other = {"name": "other", "replicas": ["http://127.0.0.1:9/v1"], "models": ["m9"]}
    here = upstream_settings(upstream, models=["m1"])
    async with gateway_for({"upstreams": [other, here]}) as gateway:
        headers = {} if said is None else {"content-type": said}
        answer = await gateway.client.post("/v1/embeddings", content=b'{"model": "m1", "input": "x"}', headers=headers)
        assert answer.status_code == 200
        plain = await gateway.client.post("/v1/embeddings", content=b"model=m1&input=x", headers=headers)
        assert plain.status_code == 400 and envelope(plain)["param"] == "model"


FORM = b'--x\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n--x--\r\n'


@pytest.mark.parametrize(
    ("said", "body"),
    [
        ({}, b'{"input": "x"}'),
        ({"content-encoding": "gzip"}, b'{"input": "x"}'),
        ({"content-type": "multipart/form-data; boundary=x"}, FORM),
    ],
)
async def test_a_connection_that_is_closed_as_it_is_used_again_fails_no_short_request(
    said: dict[str, str], body: bytes
) -> None:
    came = []

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        came.append(await reader.readexactly(len(body)))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await reader.readuntil(b"\r\n\r\n")  # the next request on this connection

    async with raw_server(once) as url:
        upstreams = [{"name": "u", "replicas": [url]}]
        if body is FORM:  # it is read for its model
            upstreams[0]["models"] = ["m"]
            upstreams.append({"name": "other", "replicas": ["http://127.0.0.1:9/v1"], "models": ["other"]})
        async with gateway_for({"upstreams": upstreams}) as gateway:
            for _ in range(3):
                answer = await gateway.client.post("/v1/embeddings", content=body, headers=said)
                assert (answer.status_code, answer.text) == (200, "ok")
    assert came == [body] * 3


async def test_an_upstream_that_is_down() -> None:
    async with gateway_for({"upstreams": [{"name": "gone", "replicas": ["http://127.0.0.1:9/v1"]}]}) as gateway:
        answer = await gateway.client.post("/v1/embeddings", json={})
        assert answer.status_code == 502
        assert envelope(answer)["code"] == "upstream_unavailable"


async def test_a_cut_answer_is_cut_for_the_client_too() -> None:
    async def cuts(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        await writer.drain()

    async with raw_server(cuts) as url, gateway_for({"upstreams": [{"name": "u", "replicas": [url]}]}) as gateway:
        raw = await exchange(gateway, b"GET /v1/responses/1 HTTP/1.1\r\nHost: h\r\n\r\n")
        assert b"first" in raw
        assert b"\r\n0\r\n" not in raw


async def test_a_head_goes_on_before_its_body_has_come() -> None:
    seen = asyncio.Event()

    async def thinks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 5\r\n\r\n")
        await seen.wait()
        writer.write(b"first")

    async with (
        asyncio.timeout(5),
        raw_server(thinks) as url,
        gateway_for({"upstreams": [{"name": "u", "replicas": [url]}]}) as gateway,
        gateway.client.stream("GET", "/v1/responses/1") as answer,
    ):
        assert answer.headers["content-type"] == "text/event-stream"
        seen.set()
        assert await answer.aread() == b"first"


async def test_it_is_counted_by_where_it_went(gateway: Gateway, upstream: FakeUpstream) -> None:
    await gateway.client.get("/v1/responses/1")
    (name,) = gateway.app.upstreams.by_name
    labels = {"endpoint": "passthrough", "upstream": name, "model": "", "mode": "passthrough", "code": "200"}
    assert gateway.app.metrics.registry.get_sample_value("nproxy_requests_total", labels) == 1


async def test_no_body_stays_no_body(gateway: Gateway, upstream: FakeUpstream) -> None:
    await gateway.client.get("/v1/responses/1")
    seen = {name.lower() for name in upstream.requests[-1].headers}
    assert not seen & {"content-length", "content-type", "transfer-encoding"}


async def test_an_upload_that_has_begun_is_not_sent_again() -> None:
    """Though nothing was answered on a connection that was kept: what has gone up is not here any more."""
    methods: list[bytes] = []

    async def serves(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while True:
                methods.append((await reader.readuntil(b"\r\n\r\n")).split()[0])
                if methods[-1] == b"POST":
                    await reader.readexactly(5)
                    return
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async def upload() -> AsyncIterator[bytes]:
        yield b"12345"

    async with raw_server(serves) as url, gateway_for({"upstreams": [{"name": "u", "replicas": [url]}]}) as gateway:
        assert (await gateway.client.get("/v1/responses/1")).text == "ok"
        assert (await gateway.client.post("/v1/audio/speech", content=upload())).status_code == 502
    assert methods == [b"GET", b"POST"]


async def test_a_body_that_is_here_is_sent_again_where_a_kept_connection_was_closed() -> None:
    heads = 0

    async def serves(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal heads
        with suppress(asyncio.IncompleteReadError):
            while True:
                await reader.readuntil(b"}")
                heads += 1
                if heads == 2:
                    return
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with raw_server(serves) as url:
        config = {"upstreams": [{"name": "u", "replicas": [url], "models": ["m"], "retries": {"per_leg": 0}}]}
        async with gateway_for(config) as gateway:
            for _ in range(2):
                assert (await gateway.post({"model": "m"}, "/v1/embeddings")).status_code == 200
    assert heads == 3


async def test_the_client_leaves(gateway: Gateway) -> None:
    came, closed = asyncio.Event(), asyncio.Event()

    async def waits(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        came.set()
        await reader.read()
        closed.set()

    async with raw_server(waits) as url, gateway_for({"upstreams": [{"name": "u", "replicas": [url]}]}) as other:
        _, writer = await asyncio.open_connection(*other.address)
        writer.write(b"GET /v1/responses/1 HTTP/1.1\r\nHost: h\r\n\r\n")
        async with asyncio.timeout(60):
            await came.wait()
            writer.close()
            await closed.wait()
            await other.app.idle()


# Routing by the body's model


@asynccontextmanager
async def two_upstreams(*models: str, **config: Any) -> AsyncIterator[tuple[Gateway, FakeUpstream, FakeUpstream]]:
    """A gateway in front of upstreams `one` and `other`, with one model each."""
    async with FakeUpstream(models=[models[0]]) as one, FakeUpstream(models=[models[1]]) as other:
        upstreams = [{"name": "one", "replicas": [one.url]}, {"name": "other", "replicas": [other.url]}]
        async with gateway_for({"upstreams": upstreams, **config}) as gateway:
            yield gateway, one, other


def posts(upstream: FakeUpstream) -> list[bytes]:
    return [seen.raw for seen in upstream.requests if seen.method == "POST"]


async def test_json_goes_where_the_model_is() -> None:
    async with two_upstreams("a", "b") as (gateway, one, other):
        sent = b'{"model": "b", "input":   "x"}'
        headers = {"content-type": "application/json"}
        answer = await gateway.client.post("/v1/embeddings", content=sent, headers=headers)
        assert answer.headers["x-nproxy-upstream"] == "other"
        assert (posts(one), posts(other)) == ([], [sent])
        unknown = await gateway.client.post("/v1/embeddings", json={"model": "c"})
        assert envelope(unknown)["code"] == "model_not_found"
        unnamed = await gateway.client.post("/v1/embeddings", json={"input": "x"})
        assert unnamed.status_code == 400


async def test_multipart_goes_where_the_model_is() -> None:
    async with two_upstreams("a", "whisper") as (gateway, _, other):
        audio = b"\x00\xff" * 100_000
        files = {"file": ("a.wav", audio)}
        answer = await gateway.client.post("/v1/audio/transcriptions", data={"model": "whisper"}, files=files)
        assert answer.headers["x-nproxy-upstream"] == "other"
        (raw,) = posts(other)
        assert audio in raw
        assert raw.count(b'name="model"') == 1


async def test_without_a_model_the_configured_upstream() -> None:
    async with two_upstreams("a", "b", passthrough={"upstream": "other"}) as (gateway, _, _):
        answer = await gateway.client.get("/v1/responses/resp_1")
        assert answer.headers["x-nproxy-upstream"] == "other"


async def test_a_model_that_nobody_lists_goes_where_no_list_can_be_read() -> None:
    async with two_upstreams("a", "b") as (gateway, _, other):
        other.list_fails = True
        assert (await gateway.post({"model": "c"}, "/v1/embeddings")).status_code == 200
        assert other.requests[-1].path == "/v1/embeddings"


async def test_an_alias_is_written_as_the_upstreams_name(start: Start, upstream: FakeUpstream) -> None:
    gateway = await start(models={"mine": "theirs"})
    await gateway.client.post("/v1/embeddings", json={"model": "mine", "input": "x"})
    assert json.loads(posts(upstream)[0]) == {"model": "theirs", "input": "x"}


NAMED = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nmine\r\n'
AUDIO = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'


@pytest.mark.parametrize("length", [100, 200_000, 2_000_000])
@pytest.mark.parametrize("file_first", [False, True])
@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("announced", [False, True])
async def test_a_form_goes_where_the_model_is_by_the_name_that_it_has_there(
    upstream: FakeUpstream, tmp_path: Path, length: int, file_first: bool, limited: bool, announced: bool
) -> None:
    """Wherever it names the model. limited: the key is for certain models. announced: by a Content-Length."""
    keys = tmp_path / "keys.yaml"
    digest = digest_of("sk").hex()
    keys.write_text(json.dumps({"keys": [{"name": "k", "hash": f"sha256:{digest}", "models": ["mine"]}]}))
    before = {"name": "before", "replicas": ["http://127.0.0.1:9/v1"], "models": ["other"]}
    config: dict[str, Any] = {"upstreams": [before, upstream_settings(upstream, models={"mine": "its name there"})]}
    if limited:
        config["auth"] = {"api_keys_file": str(keys)}
    file = AUDIO + b"\x00\xff\r\n" * (length // 4) + b"\r\n"
    form = (file + NAMED if file_first else NAMED + file) + b"--x--\r\n"

    async def pieces() -> AsyncIterator[bytes]:
        for begin in range(0, len(form), 50_000):
            yield form[begin : begin + 50_000]

    headers = {"authorization": "Bearer sk", "content-type": "multipart/form-data; boundary=x"}
    async with gateway_for(config) as gateway:
        content = form if announced else pieces()
        answer = await gateway.client.post("/v1/audio/transcriptions", content=content, headers=headers)
        assert answer.status_code == 200
    (raw,) = posts(upstream)
    assert raw == form.replace(b"mine", b"its name there")


async def test_a_form_without_a_model_is_held_within_the_memory_for_bodies(upstream: FakeUpstream) -> None:
    config = {"upstreams": [upstream_settings(upstream, models=["m"])], "limits": {"body_mib": 1}}
    headers = {"content-type": "multipart/form-data; boundary=x"}
    async with gateway_for(config) as gateway:
        long = AUDIO + bytes(2 << 20) + b"\r\n--x--\r\n"
        answer = await gateway.client.post("/v1/audio/transcriptions", content=long, headers=headers)
        assert answer.status_code == 413
        short = AUDIO + bytes(1 << 19) + b"\r\n--x--\r\n"
        answer = await gateway.client.post("/v1/audio/transcriptions", content=short, headers=headers)
        assert answer.status_code == 200
    assert posts(upstream) == [short]
