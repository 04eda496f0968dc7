"""Keys, prompts and answers stand in no log, metric, status page or error, and go nowhere that they are not meant for.

The whole suite is watched for that (tests/witness.py); here it is tried with everything that can go wrong at once.
"""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from nproxy.config import Config, digest_of
from nproxy.gateway.app import App
from tests.fakes.upstream import Behaviour, FakeUpstream
from tests.gateway.conftest import CHAT, PROMPT, Gateway, body, gateway_for, upstream_settings
from tests.gateway.raw import leave, open_request, post
from tests.witness import SECRET, witness

CLIENT, OWN, OTHER, WRONG = "canary-client-key", "canary-own-key", "canary-other-key", "canary-wrong-key"


# The witness


def test_it_hears_what_is_logged() -> None:
    log = logging.getLogger("nproxy.gateway")
    log.debug("canary")
    log.info("x", extra={"fields": {"y": ["Canary"]}})
    log.warning("%s", {"text": "seed 3 says"})
    try:
        int("canary")
    except ValueError:
        logging.getLogger("asyncio").exception("x")
        logging.getLogger("aiohttp.server").debug("x", exc_info=True)
    assert len(witness.told()) == 5
    assert witness.told() == [], "once"


async def test_it_reads_what_a_gateway_shows_at_its_end(upstream: FakeUpstream) -> None:
    app = App(Config.model_validate({"upstreams": [upstream_settings(upstream, name="canary")]}))
    app.metrics.anomalies("canary", "kind").inc()
    await app.close()
    assert [seen.split(":")[0] for seen in witness.told()] == ["metrics", "status"]


# The gateway


FAILURES = (
    Behaviour(status=500, body=f'{{"error": {{"message": "{PROMPT} {OWN}"}}}}'.encode()),
    Behaviour(status=401),
    Behaviour(status=200, body=f"<html>{PROMPT}</html>".encode(), content_type="text/html"),
    Behaviour(end_after=2, end="reset"),
    Behaviour(end_after=2, end="malformed"),
    Behaviour(end_after=1, end="error"),
    Behaviour(before_head="reset"),
    Behaviour(json_for_stream=True),
    Behaviour(refuse=("seed",)),
)


def keyed(folder: Path, *upstreams: dict[str, Any]) -> dict[str, Any]:
    file = folder / "keys.yaml"
    file.write_text(f"keys: [{{name: team-a, hash: 'sha256:{digest_of(CLIENT).hex()}'}}]")
    return {"auth": {"api_keys_file": str(file)}, "upstreams": list(upstreams)}


async def test_nothing_is_told_of_what_goes_wrong(upstream: FakeUpstream, tmp_path: Path) -> None:
    async with FakeUpstream(models=["other"]) as other:
        first = upstream_settings(upstream, api_key=OWN, models=["fake-model"])
        second = {"name": "other", "replicas": [other.url], "models": ["other"], "api_key": OTHER, "n": "fanout"}
        async with gateway_for(keyed(tmp_path, first, second)) as gateway:
            shown = await everything(gateway, upstream)
    assert shown, "errors and pages were read"
    for text in shown:
        for key in (CLIENT, OWN, OTHER, WRONG):
            assert key not in text
    for server, key in ((upstream, OWN), (other, OTHER)):
        assert server.requests
        for seen in server.requests:
            sent = json.dumps([seen.target, dict(seen.headers)])
            assert SECRET.findall(sent.replace(f"Bearer {key}", "")) == []
            assert CLIENT.encode() not in seen.raw


async def everything(gateway: Gateway, upstream: FakeUpstream) -> list[str]:
    """Ask in all ways for what fails in all ways; the texts of what is told beside answers."""
    key = {"Authorization": f"Bearer {CLIENT}"}
    texts: list[str] = []
    for behaviour in FAILURES:
        upstream.behaviour = behaviour
        for path in (CHAT, "/v1/completions", "/v1/embeddings"):
            for stream in (False, True):
                answer = await gateway.post(body(path, n=2, stream=stream), path, headers=key)
                if answer.status_code != 500 and path != "/v1/embeddings":  # an upstream's own words are passed on
                    texts.append(answer.text if answer.status_code >= 400 else "")
    upstream.behaviour = Behaviour()
    assert (await gateway.post(body(n=2, model="other"), headers=key)).status_code == 200
    for wrong in ({}, {"x-api-key": WRONG}, {"Authorization": f"Basic {CLIENT}"}):
        texts.append((await gateway.post(body(), headers=wrong)).text)
    for content in (b"canary", b'{"canary": ', json.dumps(body(n=PROMPT)).encode(), json.dumps(body(model=7)).encode()):
        texts.append((await gateway.post(content, headers=key)).text)
    for target in (f"/v1/models/{CLIENT}", f"/{CLIENT}", f"/v1/embeddings/../{CLIENT}"):
        texts.append((await gateway.client.get(target)).text)
    await ways_to_leave(gateway)
    for page in ("/metrics", "/status", "/v1/models"):
        texts.append((await gateway.client.get(page, headers=key)).text)
        assert SECRET.search(texts[-1]) is None
    return texts


async def ways_to_leave(gateway: Gateway) -> None:
    for how in ("close", "reset", "half-close"):
        _, writer = await open_request(gateway, body(stream=True))
        await leave(writer, how)
        writer.close()
    for sent in (
        post(b"canary", "Content-Length: 100", f"X-Api-Key: {CLIENT}"),
        b"canary\r\n\r\n",
        b"\x16\x03\x01canary",
    ):
        _, writer = await asyncio.open_connection(*gateway.address)
        writer.write(sent)
        await writer.drain()
        writer.close()
    await gateway.app.idle()


async def test_a_fault_of_our_own_tells_nothing(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its traceback is logged: what Python puts into one is file, line and message, and ours hold no values."""
    from nproxy.gateway import generate

    def broken(*_: object) -> None:
        raise RuntimeError("a fault")

    monkeypatch.setattr(generate, "make_plan", broken)
    answer = await gateway.post(body(n=2), headers={"Authorization": f"Bearer {CLIENT}"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")


async def test_objects_that_hold_secrets_do_not_show_them(gateway: Gateway, upstream: FakeUpstream) -> None:
    held = asyncio.Event()
    upstream.behaviour = Behaviour(hold=held)
    asked = asyncio.create_task(gateway.post(body(n=2), headers={"x-api-key": CLIENT}))
    await upstream.until(lambda: len(upstream.open_calls) == 2)
    for thing in (gateway.app.settings.edge, gateway.app.config, *gateway.app.upstreams.all, *gateway.app.drives):
        assert SECRET.search(repr(thing)) is None
    held.set()
    assert (await asked).status_code == 200
