"""The document and the gateway that serves it say the same: every route, every operation, every answer."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

import httpx
import pytest

from nproxy.config import Config
from nproxy.gateway import routes
from nproxy.gateway.openapi.document import gateway_document
from nproxy.gateway.openapi.shapes import MODELS, properties_of
from nproxy.gateway.pages.site import ADDRESSES
from nproxy.gateway.paths import DEFAULT_PASSTHROUGH
from nproxy.openai.body import Body
from nproxy.openai.errors import ApiError
from nproxy.openai.requests import parse_chat, parse_completion
from tests.fakes.upstream import MODEL, Behaviour, FakeUpstream
from tests.gateway.conftest import CHAT, Gateway, Start, body
from tests.gateway.openapi.described import answer_problems, operations, problems, request_problems
from tests.openai import drawn_requests
from tests.transcripts import recorded

COMPLETIONS = "/v1/completions"
PARSERS = {CHAT: parse_chat, COMPLETIONS: parse_completion}
RECORDED = [(server, name) for server in recorded.SERVERS for name in recorded.names(server)]
ASKED = [(server, name) for server, name in RECORDED if recorded.load(server, name).request]

READ = {*properties_of(MODELS["chat"]), *properties_of(MODELS["completion"]), "messages", "prompt", "choice_params"}
"""Fields that the gateway judges; the others are the server's to refuse, and the document says what servers take."""

DOCUMENT = gateway_document(Config.model_validate({"n_policy": {"max_n": drawn_requests.LIMITS.max_n}}))


def test_every_route_is_in_it() -> None:
    there = {(path, method.upper()) for path, method, _ in operations(gateway_document(Config()))}
    for path, endpoint in routes._OWN.items():
        for method in endpoint.methods:
            assert method == "HEAD" or (path, method) in there
    assert {(routes._MODEL + "{model}", "GET"), *((address, "GET") for address in ADDRESSES.values())} <= there
    for root in DEFAULT_PASSTHROUGH:
        assert any(path == root or path.startswith(root + "/") for path, _ in there), root


async def test_every_operation_is_served(start: Start) -> None:
    gateway = await start()
    document = (await gateway.client.get("/openapi.json")).json()
    for path, method, _ in operations(document):
        target = path.replace("{model}", MODEL).replace("{response_id}", "resp_1")
        answer = await gateway.client.request(method, target, json={} if method == "post" else None)
        assert answer.status_code not in (404, 405), (method, path, answer.text)


async def test_it_follows_the_settings_and_is_known_by_its_tag(start: Start) -> None:
    gateway = await start(config={"auth": {"api_key": "k" * 20}})
    first = await gateway.client.get("/openapi.json")
    assert first.status_code == 200, "it needs no key"
    known = {"If-None-Match": first.headers["etag"]}
    assert (await gateway.client.get("/openapi.json", headers=known)).status_code == 304
    changed = gateway.app.config.model_copy(
        update={"n_policy": gateway.app.config.n_policy.model_copy(update={"max_n": 5})}
    )
    gateway.app.reconfigure(changed)
    then = await gateway.client.get("/openapi.json", headers=known)
    assert then.status_code == 200
    assert then.json()["components"]["schemas"]["ChatRequest"]["properties"]["n"]["maximum"] == 5


@pytest.mark.parametrize(("server", "name"), ASKED)
def test_a_recorded_request_is_as_described_exactly_if_it_is_taken(server: str, name: str) -> None:
    asked = recorded.load(server, name)
    found = request_problems(DOCUMENT, asked.path, json.loads(asked.request))
    assert (found == []) == _taken(asked.path, asked.request), found


ANYTHING: dict[str, list[Any]] = {
    "prompt": ["", "x", ["x", ""], [1, 2], [[0], [2, 3]], None, 5, [], [[]], ["a", 1], [-1], [True], [["a"]]],
    "stop": [None, "a", [], ["a"], 5, ["a", None], {}],
    "messages": [None, [], "hi", ["hi"], [{}]],
    "stream_options": [None, {}, {"include_usage": 1}, []],
}
FIELDS: list[tuple[str, dict[str, Any]]] = [
    *((COMPLETIONS, {"prompt": prompt}) for prompt in ANYTHING["prompt"]),
    *((COMPLETIONS, {"logprobs": value}) for value in (0, 5, True, "1")),
    *((CHAT, {"logprobs": value}) for value in (True, False, 1)),
    *((CHAT, {"n": n}) for n in (None, 0, 1, 16, 17, True, "2", 2.5)),
    *((CHAT, {"n_cmpl": n}) for n in (0, 1, 16, 17)),
    *((CHAT, {"best_of": n}) for n in (0, 1, 16, 17)),
    *((CHAT, {"seed": seed}) for seed in (-(2**63), 2**63 - 1, 2**63, 1.5, "7")),
    *((path, {"stop": stop}) for path in (CHAT, COMPLETIONS) for stop in ANYTHING["stop"]),
    *((CHAT, {"messages": messages}) for messages in ANYTHING["messages"]),
    *((CHAT, {"choice_params": [own]}) for own in ({}, {"top_p": None}, {"stop": ["x"]}, {"stop": 5}, {"n": 1}, None)),
    *((CHAT, {"stream": True, "stream_options": told}) for told in ANYTHING["stream_options"]),
    *((CHAT, {"model": model}) for model in (None, "m", "", 5)),
]


@pytest.mark.parametrize(("path", "fields"), FIELDS)
def test_a_field_is_as_described_exactly_if_it_is_taken(path: str, fields: dict[str, Any]) -> None:
    """But for 2.0, which is an integer to JSON Schema, and not to OpenAI."""
    body = {"messages": [{"role": "user", "content": "hi"}], "prompt": "hi", **fields}
    found = request_problems(DOCUMENT, path, body)
    assert (found == []) == _taken(path, json.dumps(body).encode()), found


def test_what_is_taken_is_as_described() -> None:
    rng, taken = Random(7), 0
    for _ in range(1500):
        raw = drawn_requests._drawn(rng)
        for path in PARSERS:
            if _taken(path, raw):
                taken += 1
                found = request_problems(DOCUMENT, path, Body.parse(raw).fields)
                assert [one for one in found if re.split("[.:]", one)[0] in READ] == [], raw
    assert taken > 300


def _taken(path: str, raw: bytes) -> bool:
    try:
        PARSERS[path](Body.parse(raw), drawn_requests.LIMITS, "default")
    except ApiError:
        return False
    return True


@pytest.mark.parametrize(("server", "name"), RECORDED)
async def test_what_becomes_of_a_recorded_answer_is_as_described(
    server: str, name: str, start: Start, upstream: FakeUpstream
) -> None:
    told = recorded.load(server, name)
    upstream.behaviour = Behaviour(status=told.status, body=told.body, content_type=told.content_type)
    gateway = await start(n="native", retries={"per_leg": 0})
    document = (await gateway.client.get("/openapi.json")).json()
    answer = await gateway.post(told.request or _ask(told.body), told.path or CHAT)
    assert answer_problems(document, "post", told.path or CHAT, answer) == []


def _ask(body: bytes) -> bytes:
    choices = len(json.loads(body)["choices"])
    return json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "x"}], "n": choices}).encode()


REQUESTS: list[tuple[str, dict[str, Any]]] = [
    *((path, {"n": n, "stream": stream}) for path in PARSERS for n in (1, 3) for stream in (False, True)),
    (CHAT, {"n": 2, "stream": True, "stream_options": {"include_usage": True}, "logprobs": True}),
    (COMPLETIONS, {"n": 2, "logprobs": 1, "prompt": ["a", "b"]}),
    (CHAT, {"n": 1, "best_of": 3}),
    (CHAT, {"n": 0}),
    (CHAT, {"messages": []}),
]


@pytest.mark.parametrize(("path", "fields"), REQUESTS)
async def test_answers_are_as_described(gateway: Gateway, path: str, fields: dict[str, Any]) -> None:
    document = (await gateway.client.get("/openapi.json")).json()
    answer = await gateway.ask(path, **fields)
    assert answer_problems(document, "post", path, answer) == []


@pytest.mark.parametrize("id", ["mine-1", "trace:7", "a b", ""])
async def test_an_id_is_as_described_whether_it_is_kept_or_replaced(gateway: Gateway, id: str) -> None:
    described = DOCUMENT["components"]["parameters"]["RequestId"]["schema"]
    answer = await gateway.post(body(n=2), headers={"x-request-id": id})
    assert answer.status_code == 200
    assert problems(DOCUMENT, described, id) == []


@pytest.mark.parametrize("end", ["error", "cut", "malformed"])
async def test_a_stream_that_fails_is_as_described(gateway: Gateway, upstream: FakeUpstream, end: Any) -> None:
    upstream.behaviour = Behaviour(end_after=2, end=end)
    document = (await gateway.client.get("/openapi.json")).json()
    answer = await gateway.ask(n=2, stream=True)
    assert "error" in answer.text
    assert answer_problems(document, "post", CHAT, answer) == []


@pytest.mark.parametrize("path", ["/health", "/ready", "/status", "/v1/models"])
async def test_what_the_gateway_says_of_itself_is_as_described(gateway: Gateway, path: str) -> None:
    document = (await gateway.client.get("/openapi.json")).json()
    assert answer_problems(document, "get", path, await gateway.client.get(path)) == []


async def test_metrics_are_as_described_in_both_formats(gateway: Gateway) -> None:
    document = (await gateway.client.get("/openapi.json")).json()
    for kind in ("text/plain", "application/openmetrics-text"):
        answer = await gateway.client.get("/metrics", headers={"accept": kind})
        assert answer.headers["content-type"].startswith(kind)
        assert answer_problems(document, "get", "/metrics", answer) == []


@pytest.mark.parametrize("fields", [{"id": 3}, {"choices": [{"index": 0}]}, {"usage": {"prompt_tokens": "5"}}])
def test_what_is_no_answer_is_not_as_described(fields: dict[str, Any]) -> None:
    good = {"id": "a", "object": "chat.completion", "created": 1, "model": "m", "choices": []}
    wrong = httpx.Response(200, json={**good, **fields})
    assert answer_problems(DOCUMENT, "post", CHAT, wrong) != []
