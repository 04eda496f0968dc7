"""Group O: which headers are passed on, which are written anew, and which are never sent."""

from __future__ import annotations

import gzip
import json
import logging
import uuid
import zlib
from pathlib import Path

import pytest

from nproxy.telemetry import logs
from tests.conformance.scene import SEED, Scene
from tests.conformance.settings import everywhere, of_http, of_several
from tests.fakes.collector import Collector
from tests.gateway.conftest import Gateway, envelope

KEY = {"authorization": "Bearer sk-client"}


@everywhere
async def test_O1_the_clients_key_goes_on(scene: Scene) -> None:
    await scene.send()
    await scene.send(headers=KEY)
    keys = [call.headers.get("authorization") for call in scene.calls]
    assert keys == [None] * scene.legs + ["Bearer sk-client"] * scene.legs


@everywhere
@pytest.mark.parametrize("name", ["api-key", "x-api-key", "x-goog-api-key"])
async def test_O1_the_clients_key_goes_on_under_the_name_that_it_has(scene: Scene, name: str) -> None:
    await scene.send(headers={name: "sk-client"})
    assert [call.headers.get(name) for call in scene.calls] == ["sk-client"] * scene.legs


@everywhere
async def test_O1_own_key_replaces_the_clients(scene: Scene) -> None:
    await scene.start(api_key="sk-own")
    await scene.send(headers={**KEY, "x-api-key": "sk-client"})
    for call in scene.calls:
        assert call.headers["authorization"] == "Bearer sk-own"
        assert "sk-client" not in str(call.headers)


@everywhere
async def test_O1_no_key_at_all(scene: Scene) -> None:
    await scene.start(api_key="none")
    await scene.send(headers={**KEY, "api-key": "sk-client"})
    assert "sk-client" not in str([call.headers for call in scene.calls])


@everywhere
async def test_O1_no_key_and_no_prompt_is_logged(scene: Scene, tmp_path: Path) -> None:
    written = tmp_path / "log"
    with written.open("wb") as file:
        logs.configure("debug", "json", file.fileno())
        try:
            gateway = await scene.start(api_key="sk-canary-own")
            prompt = [{"role": "user", "content": "canary-prompt"}]
            await scene.send(messages=prompt, headers={"authorization": "Bearer sk-canary-client"})
            scene.does(status=500)
            await scene.send(messages=prompt)
            told = (await gateway.client.get("/status")).text + (await gateway.client.get("/metrics")).text
            logging.getLogger("nproxy").handlers[0].flush()
        finally:
            for name in ("nproxy", "aiohttp"):
                logging.getLogger(name).handlers.clear()
                logging.getLogger(name).propagate = True
    lines = [json.loads(line) for line in written.read_text().splitlines()]
    generated = [line for line in lines if line["message"] == "chat/completions"]
    assert [line["status"] for line in generated] == [200, 500]
    assert generated[0]["legs"] == scene.legs
    assert "canary" not in written.read_text() + told


@everywhere
@pytest.mark.parametrize("given", ["abc-1.2_3", "a" * 128])
async def test_O2_the_id_is_echoed_and_numbered(scene: Scene, given: str) -> None:
    scene.first_call_does(status=503)
    answer = await scene.send(headers={"x-request-id": given})
    assert answer.headers["x-request-id"] == given
    ids = {call.headers["x-request-id"] for call in scene.calls}
    again = scene.calls[0].headers["x-request-id"] + "-r1"
    assert ids == {f"{given}-{leg}" for leg in range(scene.legs)} | {again}
    by_seed = {call.body["seed"]: call.headers["x-request-id"].removesuffix("-r1") for call in scene.calls}
    assert by_seed == {SEED + leg: f"{given}-{leg}" for leg in range(scene.legs)}


@of_http
@pytest.mark.parametrize(
    "given", ["", "a b", "a" * 129, "ä", "x\ty"], ids=["empty", "blank", "long", "not ASCII", "tab"]
)
async def test_O2_other_ids_are_made_anew(gateway: Gateway, given: str) -> None:
    answer = await gateway.client.get("/health", headers={b"x-request-id": given.encode()})
    assert answer.headers["x-request-id"] != given
    assert uuid.UUID(answer.headers["x-request-id"])


@of_http
async def test_O2_on_errors_too(gateway: Gateway) -> None:
    for path, status in (("/nope", 404), ("/v1/chat/completions", 405)):
        answer = await gateway.client.get(path, headers={"x-request-id": "mine"})
        assert (answer.status_code, answer.headers["x-request-id"]) == (status, "mine")


@everywhere
async def test_O3_hop_by_hop_headers_end_here(scene: Scene) -> None:
    sent = {
        "connection": "x-private, keep-alive",
        "x-private": "1",
        "keep-alive": "timeout=5",
        "te": "trailers",
        "proxy-authorization": "secret",
        "x-public": "2",
        "cookie": "session=secret",
    }
    scene.does(headers={"Connection": "x-inner", "X-Inner": "1"})
    answer = await scene.send(headers=sent)
    for call in scene.calls:
        assert call.headers["x-public"] == "2"
        for name in ("x-private", "keep-alive", "te", "proxy-authorization", "cookie"):
            assert name not in call.headers
    assert "x-inner" not in answer.headers


@everywhere
async def test_O4_host_and_length_are_computed(scene: Scene) -> None:
    assert (await scene.send(headers={"host": "elsewhere.example"})).status_code == 200
    assert len(scene.calls) == scene.legs
    for call in scene.calls:
        assert call.headers.getall("host") == [scene.upstream.url.removeprefix("http://").removesuffix("/v1")]
        assert int(call.headers["content-length"]) == len(call.raw)
        assert call.headers["accept-encoding"] == "identity"


@everywhere
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
async def test_O5_compressed_bodies_are_decoded(scene: Scene, encoding: str) -> None:
    plain = json.dumps(scene.fields()).encode()
    packed = gzip.compress(plain, mtime=0) if encoding == "gzip" else zlib.compress(plain)
    answer = await (await scene.gateway()).post(packed, headers={"content-encoding": encoding})
    assert answer.status_code == 200
    assert len(scene.calls) == scene.legs
    assert "content-encoding" not in scene.calls[0].headers


@of_http
@pytest.mark.parametrize(
    "cut",
    [b"", b"\x1f\x8b\x08", gzip.compress(b"{}", mtime=0)[:-4], gzip.compress(b"{}", mtime=0) + b"more"],
    ids=["nothing", "head", "short", "long"],
)
async def test_O5_broken_compression(gateway: Gateway, cut: bytes) -> None:
    answer = await gateway.post(cut, headers={"content-encoding": "gzip"})
    assert answer.status_code == 400
    envelope(answer)


@of_http
async def test_O5_unknown_encodings(gateway: Gateway) -> None:
    answer = await gateway.post(b"x", headers={"content-encoding": "br"})
    assert answer.status_code == 415
    envelope(answer)


@everywhere
async def test_O8_idempotency_keys_differ_per_call(scene: Scene) -> None:
    scene.first_call_does(status=503)
    await scene.send(headers={"idempotency-key": "k"})
    keys = sorted((call.body["seed"], call.headers["idempotency-key"]) for call in scene.calls)
    expected = [(SEED + leg, f"k-{leg}") for leg in range(scene.legs)]
    repeated = (scene.calls[0].body["seed"], scene.calls[0].headers["idempotency-key"])
    assert keys == sorted([*expected, repeated]), "a call that is made again is the same request"


@of_several
async def test_O8_a_call_in_place_of_a_refused_one_has_another_key_and_id(scene: Scene) -> None:
    """It has another body: a server that knows idempotency keys would refuse it under the first one's."""
    scene.first_call_does(refuse=("seed",))
    await scene.send(headers={"idempotency-key": "k", "x-request-id": "r"})
    refused, *others = scene.calls
    assert "seed" in refused.body
    [instead] = [call for call in others if call.headers["idempotency-key"].startswith("k-0")]
    assert "seed" not in instead.body
    assert (refused.headers["idempotency-key"], instead.headers["idempotency-key"]) == ("k-0", "k-0-b1")
    assert (refused.headers["x-request-id"], instead.headers["x-request-id"]) == ("r-0", "r-0-r1")


@everywhere
async def test_O9_traceparent_goes_on(scene: Scene) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    await scene.send(headers={"traceparent": trace, "tracestate": "a=b"})
    for call in scene.calls:
        assert call.headers["traceparent"].startswith("00-4bf92f3577b34da6a3ce929d0e0e4736-")
        assert call.headers["tracestate"] == "a=b"


@everywhere
async def test_O9_every_call_is_a_span(scene: Scene) -> None:
    scene.first_call_does(status=503)
    trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    async with Collector() as collector:
        gateway = await scene.start(config={"telemetry": {"otlp_endpoint": collector.url}})
        await scene.send(headers={"traceparent": f"00-{trace}-{parent}-01"})
        await gateway.app.idle()
        await gateway.app.close()
    assert (collector.server.trace_id, collector.server.parent) == (trace, parent)
    assert {call.parent for call in collector.calls} == {collector.server.id}
    told = sorted(call.headers["traceparent"] for call in scene.calls)
    assert told == sorted(f"00-{trace}-{call.id}-01" for call in collector.calls)
    assert len(set(told)) == scene.legs + 1
