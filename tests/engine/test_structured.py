"""Answers that must have a form, over HTTP and the real default model."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx
import jsonschema
import pytest

from tests.clients import lines_of
from tests.engine.asking import ask, chat, complete, refused, stream, streamed, texts
from tests.real.metrics import metric
from tests.real.processes import Server

pytestmark = [pytest.mark.model, pytest.mark.timeout(300)]

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 2, "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "colors": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "age", "colors"],
    "additionalProperties": False,
}
NAMED = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
PEOPLE = [{"role": "user", "content": "Invent a person with a name, an age and favourite colors. Answer in JSON."}]
LARK = 'start: greeting ", " NAME "!"\ngreeting: "Hello" | "Good morning"\nNAME: /[A-Z][a-z]{2,8}/'
GBNF = 'root ::= ("yes" | "no") " because " [a-z ]{5,20} "."'


def person(**fields: Any) -> dict[str, Any]:
    """Arguments of a small request for a person."""
    return {"messages": PEOPLE, "response_format": NAMED, "max_tokens": 80, "seed": 11, **fields}


async def test_eight_choices_parse_and_validate_and_differ(client: httpx.AsyncClient) -> None:
    answered = await ask(client, **person(n=8))
    people = [json.loads(text) for text in texts(answered)]
    for one in people:
        jsonschema.validate(one, PERSON)
    assert {choice["finish_reason"] for choice in answered["choices"]} == {"stop"}
    assert len({json.dumps(one) for one in people}) == 8


FORMS: dict[str, tuple[dict[str, Any], str | None]] = {
    "json_object": ({"response_format": {"type": "json_object"}}, None),
    "regex": ({"structured_outputs": {"regex": r"\d{3}-\d{4}"}}, r"\d{3}-\d{4}"),
    "choice": ({"structured_outputs": {"choice": ["crimson", "teal"]}}, "crimson|teal"),
    "lark": ({"structured_outputs": {"grammar": LARK}}, r"(Hello|Good morning), [A-Z][a-z]{2,8}!"),
    "gbnf": ({"grammar": GBNF}, r"(yes|no) because [a-z ]{5,20}\."),
    "an older name": ({"guided_choice": ["crimson", "teal"]}, "crimson|teal"),
}


def greeting(**fields: Any) -> dict[str, Any]:
    """Arguments of a request for some ten tokens."""
    return {"structured_outputs": {"grammar": LARK}, "max_tokens": 30, "seed": 11, **fields}


async def test_choice_i_is_the_single_request_with_its_seed_streamed_or_not(client: httpx.AsyncClient) -> None:
    together, live = texts(await ask(client, **greeting(n=3))), await streamed(client, **greeting(n=3))
    assert [live.texts[choice] for choice in range(3)] == together
    assert live.reasons == {choice: ["stop"] for choice in range(3)}
    alone = [texts(await ask(client, **greeting(seed=11 + choice)))[0] for choice in range(3)]
    assert alone == together
    assert len(set(together)) == 3


@pytest.mark.parametrize("name", FORMS)
async def test_each_kind_of_form_is_kept_in_both_dialects(client: httpx.AsyncClient, name: str) -> None:
    fields, pattern = FORMS[name]
    for answered in (await ask(client, n=2, max_tokens=40, **fields), await complete(client, max_tokens=40, **fields)):
        for text, choice in zip(texts(answered), answered["choices"], strict=True):
            if pattern is not None:
                assert re.fullmatch(pattern, text)
            elif choice["finish_reason"] == "stop":
                assert isinstance(json.loads(text), dict)
            else:  # an object has no end that it must come to
                assert text.startswith("{")
            assert choice["finish_reason"] == "stop" or pattern is None


async def test_a_choice_that_is_cut_says_so_and_whitespace_has_a_bound(client: httpx.AsyncClient) -> None:
    bias = {str(token): 100 for token in (198, 216, 256)}  # a line break, a space, two: wanted above all
    answered = await ask(client, **person(n=2, max_tokens=24, logit_bias=bias))
    assert {choice["finish_reason"] for choice in answered["choices"]} == {"length"}
    for text in texts(answered):
        assert re.match(r'\{( |\n {0,24}|\n\t{0,8})"name"', text)


async def test_free_choices_beside_constrained_ones_are_what_they_are_alone(client: httpx.AsyncClient) -> None:
    alone = texts(await ask(client, n=2, seed=5, max_tokens=16))
    free, held = await asyncio.gather(ask(client, n=2, seed=5, max_tokens=16), ask(client, **greeting(n=2)))
    assert texts(free) == alone
    assert all(re.fullmatch(r"(Hello|Good morning), [A-Z][a-z]{2,8}!", text) for text in texts(held))


def chain(levels: int) -> dict[str, Any]:
    """A schema that refers to one that refers to one ..."""
    links = {f"a{i}": {"type": "object", "properties": {"x": {"$ref": f"#/$defs/a{i + 1}"}}} for i in range(levels)}
    return {"$ref": "#/$defs/a0", "$defs": {**links, f"a{levels}": {"type": "null"}}}


HOSTILE: dict[str, dict[str, Any]] = {
    "without end": {"allOf": [{"type": "string", "pattern": f"a.{{{10 + i}}}"} for i in range(40)]},
    "large": {"enum": [f"value {i}" for i in range(30_000)]},
    "deep": chain(2500),
    "many ways": {"allOf": [{"anyOf": [{"pattern": f"{i}a{j}*"} for j in range(10)]} for i in range(8)]},
}


async def refused_in_time(client: httpx.AsyncClient, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Ask again while the machine is too busy to try a grammar within its time, which is a 503."""
    for _ in range(6):
        status, error = await refused(client, "/v1/chat/completions", body)
        if status != 503:
            break
    return status, error


@pytest.mark.timeout(400)
async def test_hostile_schemas_are_refused_while_another_request_streams_on(
    client: httpx.AsyncClient, engine_server: Server
) -> None:
    body = chat(max_tokens=1500, ignore_eos=True, stream=True)
    async with client.stream("POST", "/v1/chat/completions", json=body) as live:
        lines = lines_of(live)
        await anext(lines)
        for name, schema in HOSTILE.items():
            drawn = metric(engine_server.url, "nproxy_engine_tokens_total", type="completion")
            form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
            status, error = await refused_in_time(client, chat(response_format=form))
            assert (status, error["param"]) == (400, "response_format")
            assert error["message"].startswith("Invalid 'response_format': ")
            if name == "without end":  # which takes its time
                assert metric(engine_server.url, "nproxy_engine_tokens_total", type="completion") > drawn
        assert "error" not in await anext(lines)
    assert texts(await ask(client, **greeting()))


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}},
            "response_format",
            "not",
        ),
        ({"structured_outputs": {"regex": "(?=a)b"}}, "structured_outputs", "look-around"),
        ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos", "response_format"),
    ],
)
async def test_what_cannot_be_kept_is_refused_by_name(
    client: httpx.AsyncClient, fields: dict[str, Any], param: str, words: str
) -> None:
    for more in ({}, {"stream": True}):
        status, error = await refused(client, "/v1/chat/completions", chat(**fields, **more))
        assert (status, error["param"]) == (400, param)
        assert words in error["message"]


async def test_rules_that_leave_no_token_are_named(client: httpx.AsyncClient) -> None:
    fields = {"min_tokens": 9, "max_tokens": 20, "structured_outputs": {"choice": ["teal"]}}
    status, error = await refused(client, "/v1/chat/completions", chat(**fields))
    assert (status, error["param"], error["code"]) == (400, "min_tokens", "unsatisfiable_rules")
    assert error["message"] == "No token is left to sample under 'min_tokens' and 'structured_outputs'."
    form = {"type": "json_schema", "name": "no", "schema": {"const": 1}}
    body = {"model": "smollm2", "input": "Hi", "min_tokens": 9, "max_output_tokens": 20, "text": {"format": form}}
    status, error = await refused(client, "/v1/responses", body)
    assert (status, error["param"]) == (400, "min_tokens")
    assert error["message"] == "No token is left to sample under 'min_tokens' and 'text.format'."


async def test_a_form_in_a_legacy_completion_streams(client: httpx.AsyncClient) -> None:
    body = {"model": "smollm2", "prompt": "My number is", "max_tokens": 20, "guided_regex": r" \d{3}-\d{4}"}
    live = await stream(client, "/v1/completions", body)
    assert re.fullmatch(r" \d{3}-\d{4}", live.texts[0])
