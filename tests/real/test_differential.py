"""The same request relayed and fanned out: the built-in engine makes n choices itself, or one in each of n calls.

In fp32 with a seed it is reproducible, so that nothing but `id` and `created` may differ: not a key, not the order of
the keys, not what the chunks of a choice say. Left free in a stream are how the chunks of different choices interleave,
and how many tokens a chunk holds: a server that comes late to a token sends it with the next.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
import pytest

from tests.real.at_once import at_once
from tests.real.fixtures import MODEL
from tests.real.processes import Server

pytestmark = pytest.mark.model

CHAT = "/v1/chat/completions"
LEGACY = "/v1/completions"
QUESTION = [{"role": "user", "content": "Write one sentence about the sea."}]
DRAWN: dict[str, Any] = {"model": MODEL, "seed": 77, "temperature": 1.0, "max_tokens": 12}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (CHAT, {"messages": QUESTION, "n": 4}),
    "chat, one": (CHAT, {"messages": QUESTION, "n": 1}),
    "chat, no n": (CHAT, {"messages": QUESTION}),
    "chat, some stop": (CHAT, {"messages": QUESTION, "n": 4, "max_tokens": 24, "stop": [".", ","]}),
    "chat, one token": (CHAT, {"messages": QUESTION, "n": 4, "max_tokens": 1}),
    "chat, each its own": (
        CHAT,
        {"messages": QUESTION, "n": 4, "choice_params": [{"temperature": 0}, {}, {"top_p": 0.5}, {"seed": 5}]},
    ),
    "completions": (LEGACY, {"prompt": "The sea is", "n": 4}),
    "completions, prompts": (LEGACY, {"prompt": ["The sea is", "A cat can"], "n": 2}),
    "completions, token ids": (LEGACY, {"prompt": [[504, 3426, 314], [49, 2644, 416]], "n": 2}),
}


FORMS: tuple[dict[str, Any], ...] = ({}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}})


@dataclass(frozen=True)
class Told:
    """A case, and what both roads say to it in each of the forms: relayed, fanned out."""

    path: str
    body: dict[str, Any]
    answers: list[tuple[httpx.Response, httpx.Response]]


@pytest.fixture(scope="module", params=CASES)
def told(request: pytest.FixtureRequest, engine_road: Server, fanout_road: Server) -> Told:
    """All of it is asked for at once."""
    path, own = CASES[request.param]
    body = {**DRAWN, **own}
    roads = [(server, {**body, **form}) for form in FORMS for server in (engine_road, fanout_road)]
    relayed_and_fanned = at_once(*(partial(post, server, path, asked) for server, asked in roads))
    return Told(path, body, list(zip(relayed_and_fanned[::2], relayed_and_fanned[1::2], strict=True)))


def post(server: Server, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=60.0, trust_env=False, verify=False)


def items(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """Every value with the way to it, in the order in which the bytes have them; `id` and `created` without values."""
    if isinstance(value, dict):
        return [(path, "object"), *(found for key, one in value.items() for found in items(one, f"{path}.{key}"))]
    if isinstance(value, list):
        return [(path, len(value)), *(found for at, one in enumerate(value) for found in items(one, f"{path}[{at}]"))]
    if path == ".id":
        return [(path, value.partition("-")[0])]
    if path.endswith(".cached_tokens"):  # whoever comes later finds more
        return [(path, "int")]
    return [(path, type(value).__name__ if path == ".created" else value)]


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    """The chunks of a stream that is framed as it must be: one line for each event, `[DONE]` at the very end."""
    frames = answer.text.split("\n\n")
    assert frames[-2:] == ["data: [DONE]", ""]
    assert all(frame.startswith("data: {") and "\n" not in frame for frame in frames[:-2])
    return [json.loads(frame.removeprefix("data: ")) for frame in frames[:-2]]


@dataclass
class Strand:
    """What a stream says of one choice: its text, the chunks that begin and end it, and the look of those between.

    The chunks are items, their text left out; a chunk without a choice makes a strand of its own. The last one of a
    choice that was stopped may hold text or none: nothing is left of its token, but what came before comes with it if
    it is late.
    """

    text: str = ""
    ends: list[list[tuple[str, Any]]] = field(default_factory=list)
    between: list[list[tuple[str, Any]]] = field(default_factory=list)


def strands(chunks: list[dict[str, Any]]) -> dict[int | None, Strand]:
    """The choices of a stream by their index; under None the chunk of the usage, which comes last."""
    told: defaultdict[int | None, Strand] = defaultdict(Strand)
    for chunk in chunks:
        assert None not in told, "something after the usage"
        if not chunk["choices"]:
            told[None].ends.append(items(chunk))
            continue
        [choice] = chunk["choices"]
        strand, delta = told[choice["index"]], choice.get("delta")
        strand.text += (choice["text"] if delta is None else delta.get("content")) or ""
        shape = [
            (at, type(value).__name__ if at.endswith((".content", ".text")) else value) for at, value in items(chunk)
        ]
        if choice["finish_reason"] == "stop" and "role" not in (delta or {}):
            strand.ends.append([(at, value) for at, value in shape if at != ".choices[0].delta.content"])
        elif "role" in (delta or {}) or choice["finish_reason"] is not None:
            strand.ends.append(shape)
        elif shape not in strand.between:
            strand.between.append(shape)
    return dict(told)


def test_the_answers_are_the_same(told: Told) -> None:
    relayed, fanned = told.answers[0]
    assert (relayed.status_code, fanned.status_code) == (200, 200)
    assert relayed.headers["content-type"] == fanned.headers["content-type"]
    assert items(relayed.json()) == items(fanned.json())
    prompts = told.body.get("prompt")
    wanted = told.body.get("n", 1) * (len(prompts) if isinstance(prompts, list) else 1)
    assert [choice["index"] for choice in fanned.json()["choices"]] == list(range(wanted))


@pytest.mark.parametrize("form", [1, 2], ids=["plain", "usage"])
def test_the_streams_are_the_same(told: Told, form: int) -> None:
    relayed, fanned = told.answers[form]
    assert (relayed.status_code, fanned.status_code) == (200, 200)
    assert relayed.headers["content-type"] == fanned.headers["content-type"]

    chunks = [events(answer) for answer in (relayed, fanned)]
    one_way, other_way = map(strands, chunks)
    assert one_way.keys() == other_way.keys()
    for index, strand in one_way.items():
        other = other_way[index]
        assert (strand.text, strand.ends) == (other.text, other.ends)
        assert strand.between == other.between or [] in (strand.between, other.between)
        assert len(strand.between) <= 1, "chunks of one choice that look different"
    assert (None in one_way) == ("stream_options" in FORMS[form])
    for one in chunks:
        assert len({(chunk["id"], chunk["created"]) for chunk in one}) == 1

    whole = told.answers[0][1].json()["choices"]
    texts = [one["message"]["content"] if told.path == CHAT else one["text"] for one in whole]
    assert [one_way[index].text for index in range(len(whole))] == texts


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "wrong",
    [
        {"n": 0},
        {"n": 129},
        {"n": "2"},
        {"n": 2, "choice_params": [{}]},
        {"model": "no-such-model"},
        {"messages": []},
        {"max_tokens": 0},
        {"temperature": 3},
        {"response_format": {"type": "xml"}},
    ],
    ids=str,
)
def test_the_refusals_are_the_same(
    engine_road: Server, fanout_road: Server, wrong: dict[str, Any], stream: bool
) -> None:
    body = {**DRAWN, "messages": QUESTION, "n": 2, "stream": stream, **wrong}
    relayed, fanned = (post(server, CHAT, body) for server in (engine_road, fanout_road))
    assert (relayed.status_code, relayed.json()) == (fanned.status_code, fanned.json())
    assert 400 <= relayed.status_code < 500
