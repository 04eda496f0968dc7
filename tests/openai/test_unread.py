"""Long parts of whole answers are not read, and written as they came."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nproxy.openai import unread
from nproxy.openai.jsonvalue import MAX_DEPTH, dumps, loads
from nproxy.openai.unread import LONG, Unread, loads_but_long_parts

PROPERTY = settings(derandomize=True, deadline=None, max_examples=200)

TOKEN = {"token": " word", "logprob": -0.25, "bytes": [32, 119], "top_logprobs": []}
RATED = {"content": [TOKEN] * 300}
IDS = [*range(1000, 6000)]


def choice(**more: Any) -> dict[str, Any]:
    return {"index": 0, "message": {"role": "assistant", "content": "words"}, "finish_reason": "stop", **more}


def answer(*choices: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "a", "choices": [{**one, "index": at} for at, one in enumerate(choices)], **more}


def unread_keys(value: dict[str, Any]) -> list[str]:
    beside = [key for key, member in value.items() if isinstance(member, Unread)]
    return beside + [key for one in value["choices"] for key, member in one.items() if isinstance(member, Unread)]


def written(value: dict[str, Any], *, ascii: bool = False, loose: bool = False) -> bytes:
    return json.dumps(value, ensure_ascii=ascii, separators=None if loose else (",", ":")).encode()


@pytest.mark.parametrize("loose", [False, True])
@pytest.mark.parametrize("ascii", [False, True])
@pytest.mark.parametrize(
    ("value", "keys"),
    [
        (answer(choice(logprobs=RATED)), ["logprobs"]),
        (answer(choice(logprobs=RATED), choice(logprobs=RATED)), ["logprobs"] * 2),
        (answer(choice(logprobs=None), choice(token_ids=IDS, logprobs=RATED)), ["token_ids", "logprobs"]),
        (answer(choice(logprobs={"content": [TOKEN | {"token": " Wörter"}] * 300})), ["logprobs"]),
        (answer(choice(logprobs={"content": [TOKEN] * 30}), choice(logprobs=RATED)), ["logprobs"]),  # begin alike
        (answer(choice(routed_experts="x" * 4 * LONG)), ["routed_experts"]),
        (answer(choice(logprobs=RATED), prompt_token_ids=IDS), ["prompt_token_ids", "logprobs"]),
        (
            {"prompt_token_ids": IDS, "prompt_logprobs": [None, *IDS], **answer(choice(token_ids=IDS[::-1]))},
            ["prompt_token_ids", "prompt_logprobs", "token_ids"],
        ),
    ],
)
def test_what_is_long_is_written_as_it_came(value: dict[str, Any], keys: list[str], ascii: bool, loose: bool) -> None:
    body = written(value, ascii=ascii, loose=loose)
    found = loads_but_long_parts(body)
    assert unread_keys(found) == keys
    assert loads(dumps(found)) == loads(body) == value
    if not loose and not ascii:
        assert dumps(found) == body


def read_alike(body: bytes) -> tuple[Any, Any] | None:
    """Check that both ways to read a body agree. Returns what they read, None if they refuse it."""
    try:
        wanted = loads(body)
    except ValueError:
        with pytest.raises(ValueError):
            loads_but_long_parts(body)
        return None
    found = loads_but_long_parts(body)
    assert loads(dumps(found)) == wanted
    return found, wanted


NUMBER = 2**70


@pytest.mark.parametrize(
    "body",
    [
        written(answer(choice(message={"content": "x" * 5 * LONG, "tool_calls": IDS}))),
        written(answer(choice(logprobs=[RATED] * 2))),  # no object, so no log probabilities
        written(answer(choice(usage={"details": IDS}))),
        written(answer(choice(token_ids=IDS), prompt_token_ids=IDS)),  # which is which?
        written(answer(choice(logprobs=RATED, **{"k" * 5000: "k" * 5000}))),
        written({"choices": [choice(logprobs=RATED), choice(logprobs=RATED)]}),  # both have the index 0
        written({"choices": [choice(logprobs=RATED) | {"index": [0]}]}),
        written(answer(choice(logprobs=RATED))).replace(b"-0.25", b"NaN", 1),
        written(answer(choice(logprobs=RATED))).replace(b"-0.25", b"-Infinity", 1),
        written(answer(choice(logprobs=RATED))).replace(b" word", b"\\ud800", 1),
        written(answer(choice(logprobs=RATED, seed=NUMBER))),
        written(answer(choice(logprobs=RATED, message={"content": "\ud800"})), ascii=True),
        written(answer(choice(logprobs=RATED))).replace(b'"index":0', b'"logprobs":%b' % dumps(RATED)),
        written(answer(choice(logprobs=RATED))).replace(b'"id":"a"', b'"choices":[{"logprobs":%b}]' % dumps(RATED)),
        b"[" + written(answer(choice(logprobs=RATED))) + b"]",
    ],
)
def test_an_answer_that_must_be_mended_is_read_as_a_whole(body: bytes) -> None:
    assert len(body) > 4 * LONG
    read = read_alike(body)
    if read is not None:
        found, wanted = read
        assert found == wanted or b'"choices":[{"logprobs"' in body


@pytest.mark.parametrize(
    "wrong",
    [
        lambda body: body.replace(b" word", b"\xff", 1),
        lambda body: body.replace(b" word", b"\x01", 1),
        lambda body: body.replace(b"[32,119]", b"[32,119,]", 1),
        lambda body: body.replace(b"-0.25", b"-.25", 1),
        lambda body: body[:-1],
        lambda body: body + b"}",
        lambda body: body[:-1] + b',"a":%b}' % (b"[" * MAX_DEPTH + b"]" * MAX_DEPTH),
        lambda body: body.replace(b"[32,119]", b"[" * 100_000 + b"]" * 100_000, 1),
    ],
)
def test_what_is_no_json_is_refused(wrong: Any) -> None:
    body = written(answer(choice(logprobs=RATED)))
    assert unread_keys(loads_but_long_parts(body))
    with pytest.raises(ValueError):
        loads_but_long_parts(wrong(body))


def test_a_short_answer_is_read() -> None:
    body = written(answer(choice(logprobs={"content": [TOKEN] * 100})))
    assert LONG < len(body) < 4 * LONG
    assert unread_keys(loads_but_long_parts(body)) == []


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@PROPERTY
@given(
    members=st.lists(st.dictionaries(st.sampled_from(["logprobs", "token_ids", "usage", "x"]), values), max_size=4),
    beside=st.dictionaries(st.sampled_from(["prompt_logprobs", "prompt_token_ids", "y"]), values),
    loose=st.booleans(),
    ascii=st.booleans(),
)
def test_any_answer_is_the_same_when_it_is_written(
    members: list[dict[str, Any]], beside: dict[str, Any], loose: bool, ascii: bool
) -> None:
    body = json.dumps(
        {**beside, "choices": members}, ensure_ascii=ascii, separators=None if loose else (",", ":")
    ).encode("utf-8", "surrogatepass")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unread, "LONG", 4)
        read_alike(body)


def test_what_is_unread_is_what_the_writer_passes_on() -> None:
    assert Unread is orjson.Fragment
    assert dumps({"a": Unread(b'{"b": 1.50}')}) == b'{"a":{"b": 1.50}}'
