"""Who may call: keys, what is refused without one, and what a key may see."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from nproxy.config import Config, Key
from nproxy.gateway.auth import KeyRing, shown_key
from nproxy.gateway.bodies import parsed
from nproxy.gateway.callers import UNLIMITED, Rates
from nproxy.gateway.passthrough import forms, upload
from nproxy.gateway.passthrough.forms import models_of
from nproxy.openai.body import LONG, Body
from nproxy.openai.errors import ApiError
from tests.fakes.upstream import Behaviour, FakeUpstream
from tests.gateway.conftest import CHAT, Gateway, body, envelope, gateway_for, upstream_settings
from tests.gateway.raw import apart, post

KEY, OLD, NARROW, OFF, ENDED = "canary-key-1", "canary-key-0", "canary-key-2", "canary-key-3", "canary-key-4"


def digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def written(key: str) -> str:
    return f"sha256:{digest(key).hex()}"


KEYS = f"""
keys:
- {{name: team-a, hash: [{written(KEY)}, {written(OLD)}], weight: 2, choices: 4, requests_per_minute: 900}}
- {{name: narrow, hash: {written(NARROW)}, models: [fake-model]}}
- {{name: off, hash: {written(OFF)}, disabled: true}}
- {{name: ended, hash: {written(ENDED)}, expires: 2026-01-01}}
"""


# The ring of keys


def test_a_key_is_found_by_each_of_its_hashes() -> None:
    ring = KeyRing([Key(name="a", hash=(digest("x"), digest("y")), choices=4, weight=2, requests_per_minute=9)])
    first, second = ring.caller("x", 0), ring.caller("y", 0)
    assert first == second
    assert (first.name, first.bucket, first.weight, first.choices) == ("a", "a", 2, 4)
    assert first.rates == Rates(requests=9)


def test_each_rate_that_a_key_has_none_of_its_own_of_is_the_one_for_all() -> None:
    for own, limits in (
        ({"requests_per_minute": 9}, Rates(9, 2, 3)),
        ({"choices_per_minute": 9}, Rates(1, 9, 3)),
        ({}, Rates(1, 2, 3)),
    ):
        key = Key.model_validate({"name": "a", "hash": (digest("x"),), **own})
        assert KeyRing([key], Rates(1, 2, 3)).caller("x", 0).rates == limits
    assert KeyRing([key]).caller("x", 0).rates is UNLIMITED


def test_a_key_ends_in_its_moment() -> None:
    moment = datetime(2027, 1, 31, tzinfo=UTC)
    ring = KeyRing([Key(name="a", hash=(digest("x"),), expires=moment)])
    assert ring.caller("x", moment.timestamp() - 1).name == "a"
    with pytest.raises(ApiError):
        ring.caller("x", moment.timestamp())


@pytest.mark.parametrize("shown", [None, "", "unknown", "X", "x ", "\udcff"])
def test_all_refusals_are_one(shown: str | None) -> None:
    ring = KeyRing([Key(name="a", hash=(digest("x"),)), Key(name="b", hash=(digest("off"),), disabled=True)])
    said = set()
    for key in (shown, "off"):
        with pytest.raises(ApiError) as raised:
            ring.caller(key, 0)
        said.add((raised.value.status, raised.value.envelope(), tuple(raised.value.headers.items())))
    assert len(said) == 1


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({"Authorization": "Bearer a"}, "a"),
        ({"Authorization": "bearer  a "}, "a"),
        ({"api-key": "a"}, "a"),
        ({"x-api-key": "a"}, "a"),
        ({"Authorization": "Bearer a", "x-api-key": "b"}, "a"),
        ({"Authorization": "Basic a", "x-api-key": "b"}, "b"),
        ({"Authorization": "Bearer "}, None),
        ({"Authorization": "a"}, None),
        ({}, None),
    ],
)
def test_where_a_key_is_shown(headers: dict[str, str], key: str | None) -> None:
    assert shown_key(headers) == key


# A gateway with keys


@pytest.fixture
def config(upstream: FakeUpstream, tmp_path: Path) -> dict[str, Any]:
    file = tmp_path / "keys.yaml"
    file.write_text(KEYS)
    return {"auth": {"api_keys_file": str(file)}, "upstreams": [upstream_settings(upstream)]}


@pytest.fixture
async def locked(config: dict[str, Any]) -> AsyncIterator[Gateway]:
    async with gateway_for(config) as gateway:
        yield gateway


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def ask(gateway: Gateway, key: str, path: str = CHAT, **fields: Any) -> httpx.Response:
    return await gateway.post(body(path, **fields), path, headers=bearer(key))


@pytest.mark.parametrize("headers", [bearer(KEY), bearer(OLD), {"api-key": KEY}, {"x-api-key": KEY}])
async def test_who_shows_a_key_is_served(locked: Gateway, headers: dict[str, str]) -> None:
    answer = await locked.post(body(n=2), headers=headers)
    assert answer.status_code == 200
    assert len(answer.json()["choices"]) == 2


@pytest.mark.parametrize(
    "headers", [{}, bearer("wrong"), bearer(OFF), bearer(ENDED), {"Authorization": KEY}, {"x-api-key": "wrong"}]
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", CHAT),
        ("POST", "/v1/completions"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/fake-model"),
        ("POST", "/v1/embeddings"),
        ("GET", "/metrics"),
        ("GET", "/status"),
        ("GET", "/no-such-path"),
        ("GET", "/v1/chat/completions"),
    ],
)
async def test_who_shows_none_is_refused_everywhere(
    locked: Gateway, upstream: FakeUpstream, method: str, path: str, headers: dict[str, str]
) -> None:
    answer = await locked.client.request(method, path, headers=headers, content=b"{}" if method == "POST" else None)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    error = envelope(answer)
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", "invalid_api_key", None)
    assert upstream.calls == []
    assert "canary" not in answer.text and "wrong" not in answer.text


@pytest.mark.parametrize("path", ["/health", "/ready"])
async def test_who_looks_after_processes_needs_no_key(locked: Gateway, path: str) -> None:
    assert (await locked.client.get(path)).status_code == 200


async def test_a_body_is_not_waited_for_from_those_without_a_key(locked: Gateway) -> None:
    reader, writer = await asyncio.open_connection(*locked.address)
    writer.write(post(b"", "Content-Length: 1000000", "Expect: 100-continue"))
    async with asyncio.timeout(5):
        status, _, _ = apart(await reader.readuntil(b"}}"))
    writer.close()
    assert status == 401


async def test_a_key_for_some_models_knows_no_others(config: dict[str, Any], upstream: FakeUpstream) -> None:
    upstream.models = ["fake-model", "other"]
    config["upstreams"][0]["models"] = ["fake-model", "other"]
    async with gateway_for(config) as gateway:
        everything = await gateway.client.get("/v1/models", headers=bearer(KEY))
        assert [entry["id"] for entry in everything.json()["data"]] == ["fake-model", "other"]
        shown = await gateway.client.get("/v1/models", headers=bearer(NARROW))
        assert [entry["id"] for entry in shown.json()["data"]] == ["fake-model"]
        assert (await gateway.client.get("/v1/models/other", headers=bearer(NARROW))).status_code == 404
        assert (await ask(gateway, NARROW)).status_code == 200
        refused, unknown = await ask(gateway, NARROW, model="other"), await ask(gateway, KEY, model="none")
        assert refused.status_code == unknown.status_code == 404
        assert refused.text == unknown.text.replace("none", "other"), "nothing tells the two apart"
        assert (await ask(gateway, KEY, model="other")).status_code == 200


async def test_a_key_for_some_models_has_them_by_the_names_that_it_has(
    config: dict[str, Any], upstream: FakeUpstream
) -> None:
    """Ollama lists llama3.2:latest and takes llama3.2."""
    config["upstreams"][0].pop("models", None)
    for listed in ("fake-model:latest", "fake-model"):
        upstream.models = [listed, "other"]
        async with gateway_for(config) as gateway:
            told = await gateway.client.get("/v1/models", headers=bearer(NARROW))
            assert [entry["id"] for entry in told.json()["data"]] == ["fake-model"]


@pytest.mark.parametrize("configured", [False, True])
async def test_a_key_for_some_models_passes_through_to_them_only(
    config: dict[str, Any], upstream: FakeUpstream, configured: bool
) -> None:
    if configured:
        config["upstreams"][0]["models"] = ["fake-model", "other"]
    twice = b'{"model": "fake-model", "input": "x", "model": "other"}'
    async with gateway_for(config) as gateway:
        headers = bearer(NARROW)

        async def status(content: bytes, kind: str = "application/json", **more: str) -> int:
            sent = {**headers, "content-type": kind, **more}
            return (await gateway.client.post("/v1/embeddings", content=content, headers=sent)).status_code

        assert await status(b'{"model": "fake-model", "input": "x"}') == 200
        seen = len(upstream.requests)
        assert await status(b'{"model": "other", "input": "x"}') == 404
        assert await status(twice) == 404
        form = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nMODEL\r\n'
        both = form.replace(b"MODEL", b"fake-model") + form.replace(b"MODEL", b"other") + b"--b--\r\n"
        assert await status(both, "multipart/form-data; boundary=b") == 404
        escaped = b"--b\r\nContent-Disposition: form-data; name*=utf-8''model\r\n\r\nother\r\n--b--\r\n"
        unclear = form.replace(b"MODEL", b"fake-model") + escaped
        assert await status(unclear, "multipart/form-data; boundary=b") == 400
        assert await status(b'{"model": "fake-model", "MODEL": "other"}') == 400
        for method, content in (("GET", None), ("POST", b'{"model": "fake-model"}')):
            target = "/v1/audio/speech?x=1&Model=other"
            answer = await gateway.client.request(method, target, content=content, headers=headers)
            assert answer.status_code == 404
        assert len(upstream.requests) == seen
        assert await status(b'{"model": "other", "input": "x", "model": "fake-model"}') == 200
        assert b"other" not in upstream.requests[-1].raw, "some servers would take the first"
        only = form.replace(b"MODEL", b"fake-model") + b"--b--\r\n"
        assert await status(only, "multipart/form-data; boundary=b") == 200


async def test_a_key_for_some_models_goes_where_they_are(config: dict[str, Any], upstream: FakeUpstream) -> None:
    config["upstreams"][0]["models"] = ["fake-model"]
    other = {"name": "before", "replicas": ["http://127.0.0.1:9/v1"], "models": ["other"]}
    config["upstreams"].insert(0, other)
    async with gateway_for(config) as gateway:
        sent = {"model": "fake-model", "input": "x"}
        assert (await gateway.post(sent, "/v1/embeddings", headers=bearer(NARROW))).status_code == 200


async def test_models_of_a_key_go_by_the_name_that_the_upstream_knows(
    config: dict[str, Any], upstream: FakeUpstream
) -> None:
    config["upstreams"][0]["models"] = {"fake-model": "theirs"}
    async with gateway_for(config) as gateway:
        sent = {"model": "fake-model", "input": "x"}
        assert (await gateway.post(sent, "/v1/embeddings", headers=bearer(NARROW))).status_code == 200
        assert json.loads(upstream.requests[-1].raw) == {"model": "theirs", "input": "x"}


JSON_BODY = {"content-type": "application/json"}
FORM = b'--b\r\nContent-Disposition: form-data; name="%b"\r\n\r\nfake-model\r\n--b--\r\n'


@pytest.mark.parametrize("configured", [False, True])
@pytest.mark.parametrize(
    ("method", "path", "content", "headers"),
    [
        ("GET", "/v1/responses/resp_1", None, {}),
        ("DELETE", "/v1/responses/resp_1", None, {}),
        ("POST", "/v1/responses/resp_1/cancel", None, JSON_BODY),
        ("GET", "/v1/batches?model=fake-model", None, {}),
        ("POST", "/v1/batches", b'{"input_file_id": "file-1"}', JSON_BODY),
        ("POST", "/v1/embeddings", b'{"model": null}', JSON_BODY),
        ("POST", "/v1/embeddings", b'{"model": ["fake-model"]}', JSON_BODY),
        ("POST", "/v1/embeddings", b"not json", JSON_BODY),
        ("POST", "/v1/embeddings", b'{"model": "fake-model"}', {"content-type": "text/plain"}),
        ("POST", "/v1/embeddings", b'{"model": "fake-model"}', {}),
        ("POST", "/v1/embeddings", b"\x1f\x8b", {**JSON_BODY, "content-encoding": "gzip"}),
        ("POST", "/v1/embeddings", b'{"model": "fake-model"}', {"content-type": "application/json; charset=utf-7"}),
        ("POST", "/v1/files", FORM % b"file", {"content-type": "multipart/form-data; boundary=b"}),
        ("POST", "/v1/files", FORM % b"model", {"content-type": "text/plain; boundary=b"}),
    ],
)
async def test_a_key_for_some_models_goes_nowhere_without_naming_one(
    config: dict[str, Any],
    upstream: FakeUpstream,
    configured: bool,
    method: str,
    path: str,
    content: bytes | None,
    headers: dict[str, str],
) -> None:
    """Nobody could say which model, or whose files and answers, would be reached."""
    config["passthrough"] = {"paths": "all"}
    if configured:
        config["upstreams"][0]["models"] = ["fake-model", "other"]
    async with gateway_for(config) as gateway:
        refused = await gateway.client.request(method, path, content=content, headers={**headers, **bearer(NARROW)})
        error = envelope(refused)
        assert refused.status_code == 403
        assert (error["type"], error["param"], error["code"]) == ("permission_error", "model", "model_required")
        assert upstream.requests == []
        free = await gateway.client.request(method, path, content=content, headers={**headers, **bearer(KEY)})
        assert free.status_code != 403 and upstream.requests[-1].method == method


async def test_a_long_body_is_searched_for_its_model_beside_the_loop(
    config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    config["passthrough"] = {"paths": ["/v1/embeddings"]}
    threads: list[int] = []

    def noted(raw: bytes, check: Callable[[], None]) -> Body:
        threads.append(threading.get_ident())
        return parsed(raw, check)

    monkeypatch.setattr(upload, "parsed", noted)
    async with gateway_for(config) as gateway:
        for size in (1, LONG):
            content = json.dumps({"model": "fake-model", "input": "x" * size}).encode()
            answer = await gateway.post(content, "/v1/embeddings", headers={**JSON_BODY, **bearer(NARROW)})
            assert answer.status_code != 403
    here, beside = threads
    assert here == threading.get_ident() != beside


async def test_so_is_a_long_form(
    config: dict[str, Any], upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def noted(raw: bytes) -> list[str]:
        threads.append(threading.get_ident())
        return models_of(raw)

    monkeypatch.setattr(forms, "models_of", noted)
    head = (FORM % b"model").removesuffix(b"--b--\r\n") + b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\n'
    async with gateway_for(config) as gateway:
        for size in (1, LONG):
            content = head + b"x" * size + b"\r\n--b--\r\n"
            kind = {"content-type": "multipart/form-data; boundary=b"}
            answer = await gateway.post(content, "/v1/audio/transcriptions", headers={**kind, **bearer(NARROW)})
            assert answer.status_code == 200 and upstream.requests[-1].raw == content
    here, beside = threads
    assert here == threading.get_ident() != beside


async def test_a_model_cannot_be_named_beside_the_one_that_is_read(
    config: dict[str, Any], upstream: FakeUpstream
) -> None:
    """Go's encoding/json takes `Model` for `model`, and the last one counts."""
    async with gateway_for(config) as gateway:
        for path in (CHAT, "/v1/completions"):
            assert (await ask(gateway, NARROW, path, Model="other")).status_code == 400
            assert upstream.calls == []
        assert (await ask(gateway, KEY, Model="other")).status_code == 200, "it may use all"


@pytest.mark.parametrize("name", ["models", "fallbacks", "Models"])
@pytest.mark.parametrize("path", [CHAT, "/v1/embeddings"])
async def test_nor_can_further_models_where_a_key_is_for_some(
    config: dict[str, Any], upstream: FakeUpstream, path: str, name: str
) -> None:
    async with gateway_for(config) as gateway:
        sent = {**body(), "input": "x", "model": "fake-model", name: ["other"]}
        refused = await gateway.post(sent, path, headers=bearer(NARROW))
        assert (refused.status_code, envelope(refused)["param"]) == (400, name.lower())
        assert upstream.calls == []
        assert (await gateway.post(sent, path, headers=bearer(KEY))).status_code == 200


@pytest.mark.parametrize("name", ["model", "Model"])
async def test_nor_in_the_query(config: dict[str, Any], upstream: FakeUpstream, name: str) -> None:
    async with gateway_for(config) as gateway:
        for query, status in ((f"{name}=other", 404), (f"{name}=fake-model", 200), ("user=other", 200)):
            path = f"/v1/embeddings?{query}"
            answer = await gateway.client.post(path, json={"model": "fake-model"}, headers=bearer(NARROW))
            assert answer.status_code == status
    assert [seen.path for seen in upstream.requests].count("/v1/embeddings") == 2


async def test_bodies_of_a_key_for_some_models_have_to_fit_too(config: dict[str, Any], upstream: FakeUpstream) -> None:
    held = asyncio.Event()
    upstream.behaviour = Behaviour(hold=held)
    async with gateway_for(config) as gateway:
        gateway.app.admission.bodies.limit = 100_000
        long = {"model": "fake-model", "input": "x" * 60_000}
        first = asyncio.create_task(ask(gateway, KEY, messages=[{"role": "user", "content": "x" * 60_000}]))
        await upstream.until(lambda: len(upstream.open_calls) == 1)
        second = await gateway.post(long, "/v1/embeddings", headers=bearer(NARROW))
        held.set()
        assert (second.status_code, (await first).status_code) == (503, 200)


# What upstreams see


async def test_a_clients_key_goes_to_no_upstream(config: dict[str, Any], upstream: FakeUpstream) -> None:
    config["passthrough"] = {"paths": "all"}
    async with gateway_for(config) as gateway:
        for headers in (bearer(KEY), {"api-key": KEY}, {"x-api-key": KEY}):
            for name in ("Cookie", "x-goog-api-key", "Proxy-Authorization"):
                sent = {**headers, name: KEY}
                assert (await gateway.post(body(n=2), headers=sent)).status_code == 200
                assert (await gateway.post(body("/v1/completions"), "/v1/completions", headers=sent)).status_code == 200
                assert (await gateway.post({"input": "x"}, "/v1/embeddings", headers=sent)).status_code == 200
                assert (await gateway.client.get("/anything", headers=sent)).status_code == 200
    assert len(upstream.requests) >= 45
    for seen in upstream.requests:
        assert KEY not in "".join(f"{name}: {value}" for name, value in seen.headers.items())
        assert KEY.encode() not in seen.raw and KEY not in seen.target


@pytest.mark.parametrize("auth", [True, False])
async def test_the_engine_is_told_the_callers_name(config: dict[str, Any], tmp_path: Path, auth: bool) -> None:
    """It shares computed prompts, and keeps responses, by key: beside auth by a name in its place."""
    if not auth:
        del config["auth"]
    async with FakeUpstream(Behaviour(n="native"), unix=str(tmp_path / "engine.sock")) as engine:
        engine.models = ["in-engine"]
        async with gateway_for(config, engine_socket=tmp_path / "engine.sock") as gateway:
            assert (await ask(gateway, KEY, model="in-engine")).status_code == 200
            told = {"model": "in-engine", "input": "x"}
            assert (await gateway.post(told, "/v1/responses", headers=bearer(KEY))).status_code == 200
    shown = [(seen.headers.get("authorization"), seen.headers.get("x-api-key")) for seen in engine.requests[-2:]]
    assert shown == [(None, "team-a")] * 2 if auth else [(f"Bearer {KEY}", None)] * 2


async def test_one_key_for_all(upstream: FakeUpstream) -> None:
    config = {"auth": {"api_key": KEY}, "upstreams": [upstream_settings(upstream)]}
    async with gateway_for(config) as gateway:
        assert (await ask(gateway, KEY)).status_code == 200
        assert (await ask(gateway, OLD)).status_code == 401
    assert KEY not in repr(Config.model_validate(config))


async def test_the_log_names_the_caller(locked: Gateway, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG"):
        await ask(locked, KEY)
        await ask(locked, "wrong")
    served, refused = (getattr(record, "fields", {}) for record in caplog.records if record.name == "nproxy.access")
    assert (served["caller"], served["client"]) == ("team-a", "127.0.0.1")
    assert "caller" not in refused and refused["status"] == 401
    assert "canary" not in json.dumps([vars(record) for record in caplog.records], default=str)
