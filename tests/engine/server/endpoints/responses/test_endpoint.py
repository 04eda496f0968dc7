"""/v1/responses over HTTP, before a core whose tokens are hashes of what a model would have read."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.server.answering import answers
from engine.server.asking.salt import salt_of
from engine.server.endpoints.responses.turns import Turn, Turns
from engine.text.template import ChatTemplate
from nproxy.openai.errors import engine_unavailable
from tests.clients import lines_of
from tests.engine.asking import answer, refused, sent_to_core
from tests.engine.conftest import MODEL
from tests.engine.server.letters import LETTERS
from tests.engine.server.test_serving import client_of, engine

URL = "/v1/responses"
TEMPLATE = ChatTemplate("{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}", {})
TOKENIZER = replace(LETTERS, template=TEMPLATE)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "engine.sock"


def body(text: Any = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": text, "max_output_tokens": 40, "seed": 3, **fields}


def text_of(response: dict[str, Any]) -> str:
    text: str = response["output"][0]["content"][0]["text"]
    return text


async def events(client: httpx.AsyncClient, **fields: Any) -> list[dict[str, Any]]:
    async with client.stream("POST", URL, json={**body(**fields), "stream": True}) as given:
        assert given.status_code == 200, await given.aread()
        assert given.headers["content-type"].startswith("text/event-stream")
        lines = [line async for line in lines_of(given)]
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


async def test_a_response_says_what_the_chat_says(path: Path) -> None:
    async with engine(TOKENIZER, path), client_of(path) as client:
        given = await answer(client, URL, body(instructions="Be brief.", metadata={"a": "b"}))
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
        chat = {"model": MODEL, "messages": messages, "max_tokens": 40, "seed": 3}
        theirs = await answer(client, "/v1/chat/completions", chat)
        assert text_of(given) == theirs["choices"][0]["message"]["content"]
        assert given["usage"]["input_tokens"] == theirs["usage"]["prompt_tokens"]
        assert (given["object"], given["model"], given["metadata"]) == ("response", MODEL, {"a": "b"})
        assert given["status"] == {"length": "incomplete", "stop": "completed"}[theirs["choices"][0]["finish_reason"]]


@pytest.mark.parametrize("much", [2, 2048])
async def test_only_the_loop_changes_what_is_kept(path: Path, monkeypatch: pytest.MonkeyPatch, much: int) -> None:
    keepers: list[str] = []
    keep = Turns.keep

    def listened(turns: Turns, turn: Turn) -> None:
        keepers.append(threading.current_thread().name)
        keep(turns, turn)

    monkeypatch.setattr(answers, "_MUCH", much)  # tokens from which on an answer is written in a thread
    monkeypatch.setattr(Turns, "keep", listened)
    async with engine(TOKENIZER, path), client_of(path) as client:
        given = await answer(client, URL, body(include=["message.output_text.logprobs"]))
        assert (await client.get(f"{URL}/{given['id']}")).json() == given
        *_, last = await events(client, include=["message.output_text.logprobs"])
        assert (await client.get(f"{URL}/{last['response']['id']}")).json() == last["response"]
    assert keepers == [threading.current_thread().name] * 2


async def test_how_many_tokens_the_model_would_read(path: Path) -> None:
    async with engine(TOKENIZER, path), client_of(path) as client:
        first = await answer(client, URL, body("one"))
        asked = body("two", previous_response_id=first["id"], instructions="Be brief.")
        counted = await answer(client, f"{URL}/input_tokens", asked)
        given = await answer(client, URL, asked)
        assert counted == {"object": "response.input_tokens", "input_tokens": given["usage"]["input_tokens"]}
        status, error = await refused(client, f"{URL}/input_tokens", body(previous_response_id="resp_1"))
        assert (status, error["param"]) == (404, "previous_response_id")


async def test_the_model_may_be_left_out_unless_an_adapter_might_be_meant(path: Path) -> None:
    async with engine(TOKENIZER, path) as served, client_of(path) as client:
        unnamed = {key: value for key, value in body("one").items() if key != "model"}
        assert (await answer(client, URL, unnamed))["model"] == MODEL
        assert (await answer(client, f"{URL}/input_tokens", unnamed))["input_tokens"] > 0
        served.adapters = ("mine",)
        status, error = await refused(client, URL, unnamed)
        assert (status, error["param"], error["code"]) == (400, "model", "missing_required_parameter")


async def test_a_stream_ends_with_the_response_that_is_kept(path: Path) -> None:
    async with engine(TOKENIZER, path), client_of(path) as client:
        whole = await answer(client, URL, body())
        stream = await events(client)
        last = stream[-1]["response"]
        assert stream[-1]["type"] == f"response.{last['status']}" == f"response.{whole['status']}"
        assert text_of(last) == text_of(whole)
        assert [event["sequence_number"] for event in stream] == list(range(len(stream)))
        assert (await client.get(f"{URL}/{last['id']}")).json() == last


async def test_a_turn_goes_on_from_the_one_before(path: Path) -> None:
    """It is the request with the whole conversation in it, apart from the instructions, which are each turn's own."""
    async with engine(TOKENIZER, path), client_of(path) as client:
        first = await answer(client, URL, body("one", instructions="Old."))
        second = await answer(client, URL, body("two", previous_response_id=first["id"]))
        third = await answer(client, URL, body("three", previous_response_id=second["id"], instructions="New."))
        said = [{"role": "assistant", "content": text_of(turn)} for turn in (first, second)]
        spelled = [{"role": "user", "content": "one"}, said[0], {"role": "user", "content": "two"}, said[1]]
        resent = await answer(client, URL, body([*spelled, {"role": "user", "content": "three"}], instructions="New."))
        assert text_of(third) == text_of(resent)
        assert third["usage"]["input_tokens"] == resent["usage"]["input_tokens"]
        assert third["previous_response_id"] == second["id"]


async def test_the_input_of_a_response_can_be_listed(path: Path) -> None:
    async with engine(TOKENIZER, path), client_of(path) as client:
        first = await answer(client, URL, body("one"))
        second = await answer(client, URL, body("two", previous_response_id=first["id"]))
        url = f"{URL}/{second['id']}/input_items"
        newest = (await client.get(url)).json()
        assert [item["content"][0]["text"] for item in newest["data"]] == ["two", text_of(first), "one"]
        page = (await client.get(url, params={"order": "asc", "limit": 2})).json()
        assert (page["data"], page["has_more"]) == (newest["data"][:0:-1], True)
        rest = (await client.get(url, params={"order": "asc", "after": page["last_id"]})).json()
        assert (rest["data"], rest["has_more"], rest["first_id"]) == ([newest["data"][0]], False, newest["first_id"])
        assert (await client.get(url, params={"include": "reasoning.encrypted_content"})).json() == newest
        wrong = [
            ({"before": "x"}, 400),
            ({"limit": "0"}, 400),
            ({"limit": "x"}, 400),
            ({"order": "up"}, 400),
            ({"after": "x"}, 404),
        ]
        assert [(await client.get(url, params=params)).status_code for params, _ in wrong] == [s for _, s in wrong]


async def test_deleted_and_unknown_and_unkept_ones_are_not_found(path: Path) -> None:
    async with engine(TOKENIZER, path), client_of(path) as client:
        first = await answer(client, URL, body())
        unkept = await answer(client, URL, body(store=False))
        deleted = await client.delete(f"{URL}/{first['id']}")
        assert deleted.json() == {"id": first["id"], "object": "response", "deleted": True}
        for id in (first["id"], unkept["id"], "resp_nobody"):
            for method, at in (("GET", id), ("DELETE", id), ("GET", f"{id}/input_items")):
                response = await client.request(method, f"{URL}/{at}")
                assert (response.status_code, response.json()["error"]["code"]) == (404, "response_not_found")
            status, error = await refused(client, URL, body(previous_response_id=id))
            assert (status, error["param"]) == (404, "previous_response_id")


async def test_another_key_sees_nothing_of_it(path: Path) -> None:
    async with engine(TOKENIZER, path), client_of(path) as client:
        mine = {"authorization": "Bearer mine"}
        response = await client.post(URL, json=body(), headers=mine)
        url = f"{URL}/{response.json()['id']}"
        assert (await client.get(url, headers=mine)).status_code == 200
        for other in ({}, {"authorization": "Bearer other"}):
            assert (await client.get(url, headers=other)).status_code == 404
            assert (await client.delete(url, headers=other)).status_code == 404


async def test_the_key_and_the_adapter_go_with_it(path: Path) -> None:
    async with engine(TOKENIZER, path, adapters=(("tuned", "a-folder"),)) as served, client_of(path) as client:
        sent = sent_to_core(served)
        key = {"authorization": "Bearer x"}
        given = await client.post(URL, json=body(model="tuned"), headers=key)
        assert given.json()["model"] == "tuned"
        await answer(client, URL, body(cache_salt="pinch"))
        own = salt_of(key, {})
        assert [(one.adapter, one.salt) for one in sent] == [
            ("tuned", own),
            (None, salt_of({}, {"cache_salt": "pinch"})),
        ]
        assert own != sent[1].salt


async def test_a_second_turn_finds_the_first_in_the_cache(path: Path) -> None:
    async with engine(TOKENIZER, path), client_of(path) as client:
        first = await answer(client, URL, body("a long story " * 8))
        assert first["usage"]["input_tokens_details"]["cached_tokens"] == 0
        second = await answer(client, URL, body("and on", previous_response_id=first["id"]))
        asked = first["usage"]["input_tokens"]
        assert asked - 4 <= second["usage"]["input_tokens_details"]["cached_tokens"] < second["usage"]["input_tokens"]


@pytest.mark.parametrize(
    ("fields", "param", "status"),
    [
        ({"n": 2}, "n", 400),
        ({"model": "other"}, "model", 404),
        ({"input": []}, "input", 400),
        ({"max_output_tokens": 600}, "input", 400),
        ({"temperature": 9}, "temperature", 400),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", 400),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema", 400),
        ({"input": "a" * 5000}, "input", 400),
    ],
)
async def test_what_is_refused_is_named_as_it_was_sent(
    path: Path, fields: dict[str, Any], param: str, status: int
) -> None:
    async with engine(TOKENIZER, path), client_of(path) as client:
        got, error = await refused(client, URL, {**body(), **fields})
        assert (got, error["param"]) == (status, param)
        assert f"'{param}'" in error["message"] or "input" in param or param == "model"


async def test_a_core_that_fails_while_it_streams_is_the_last_event(path: Path) -> None:
    async with engine(TOKENIZER, path, runner="leisurely") as served, client_of(path) as client:
        async with client.stream("POST", URL, json=body(stream=True, max_output_tokens=400, ignore_eos=True)) as given:
            lines = lines_of(given)
            await anext(lines)
            served.router.end(engine_unavailable("It is over."))
            data = [line.removeprefix("data: ") async for line in lines if line.startswith("data: ")]
        last = json.loads(data[-1])
        assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
        assert last["response"]["error"]["message"] == "It is over."
