"""/v1/embeddings over HTTP, before a core whose hidden states are hashes of what a model would have read."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable
from math import hypot
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from engine.server.asking.salt import salt_of
from engine.server.endpoints import embeddings
from engine.server.preparing.pooling import Pooling
from tests.engine.asking import answer, refused, sent_to_core
from tests.engine.conftest import MODEL
from tests.engine.server.letters import LETTERS
from tests.engine.server.test_serving import client_of, engine
from tests.fakes.runner import slots_of

LAST = Pooling("last", normalized=False, lengths=(1,))
MEAN = Pooling("mean", normalized=False)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "engine.sock"


async def asked(path: Path, given: Any, pooling: Pooling | None = LAST, **fields: Any) -> dict[str, Any]:
    async with engine(LETTERS, path) as served, client_of(path) as client:
        served.pooling = pooling
        return await answer(client, "/v1/embeddings", {"model": MODEL, "input": given, **fields})


def vectors(answered: dict[str, Any]) -> list[Any]:
    assert [entry["index"] for entry in answered["data"]] == list(range(len(answered["data"])))
    assert {entry["object"] for entry in answered["data"]} == {"embedding"}
    return [entry["embedding"] for entry in answered["data"]]


def last(tokens: Iterable[int]) -> list[float]:
    """The vector of a prompt's last token."""
    return [slots_of(tuple(tokens))[-1], 1]


def mean(tokens: Iterable[int]) -> list[float]:
    """The mean vector of a prompt's tokens."""
    slots = slots_of(tuple(tokens))
    return [sum(slots) / len(slots), 1]


async def test_one_text_and_what_is_said_with_it(path: Path) -> None:
    answered = await asked(path, "abc")
    assert vectors(answered) == [last(LETTERS.encode("abc"))]
    assert (answered["object"], answered["model"]) == ("list", MODEL)
    assert answered["usage"] == {"prompt_tokens": 4, "total_tokens": 4}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([5, 6, 7], [[5, 6, 7]]),
        ([[5, 6, 7], [8]], [[5, 6, 7], [8]]),
        (["a", "ab"], [LETTERS.encode("a"), LETTERS.encode("ab")]),
    ],
)
async def test_every_form_of_the_input(path: Path, given: Any, expected: list[list[int]]) -> None:
    assert vectors(await asked(path, given)) == [last(tokens) for tokens in expected]


async def test_a_mean_over_all_tokens_in_several_steps(path: Path) -> None:
    """The core runs 64 tokens a step, so the second prompt is computed in pieces."""
    long = [7] * 150 + [1] * 50
    assert vectors(await asked(path, [[3, 5], long], MEAN)) == [mean([3, 5]), mean(long)]


async def test_more_inputs_than_go_to_the_core_at_once_keep_their_order(path: Path) -> None:
    given = [[number] for number in range(1, 151)]
    assert vectors(await asked(path, given)) == [last(tokens) for tokens in given]


async def test_normalized_cut_and_in_base64(path: Path) -> None:
    (vector,) = vectors(await asked(path, [3, 4], Pooling("last")))
    assert hypot(*vector) == pytest.approx(1)
    (cut,) = vectors(await asked(path, [3, 4], dimensions=1))
    assert cut == [1.0]
    (packed,) = vectors(await asked(path, [3, 4], encoding_format="base64"))
    assert list(struct.unpack("<2f", base64.b64decode(packed))) == pytest.approx(last([3, 4]))


async def test_openais_client_reads_it(path: Path) -> None:
    async with engine(LETTERS, path) as served:
        served.pooling = LAST
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        async with httpx.AsyncClient(transport=transport) as opened:
            http: Any = opened  # its type has another name in the client's annotations
            client = AsyncOpenAI(base_url="http://engine/v1", api_key="unused", http_client=http)
            answered = await client.embeddings.create(model=MODEL, input=["a", "bc"])  # asks for base64 by itself
    assert [entry.embedding for entry in answered.data] == [
        pytest.approx(last(LETTERS.encode(text))) for text in ("a", "bc")
    ]


async def test_without_a_pooling_there_are_none(path: Path) -> None:
    async with engine(LETTERS, path), client_of(path) as client:
        status, error = await refused(client, "/v1/embeddings", {"model": MODEL, "input": "a"})
        assert (status, error["code"]) == (400, "unsupported_model")
        assert "--pooling" in error["message"]


async def test_the_model_may_be_left_out_unless_an_adapter_might_be_meant(path: Path) -> None:
    async with engine(LETTERS, path) as served, client_of(path) as client:
        served.pooling = LAST
        assert (await answer(client, "/v1/embeddings", {"input": "a"}))["model"] == MODEL
        assert (await answer(client, "/v1/embeddings", {"input": "a", "model": None}))["model"] == MODEL
        served.adapters = ("mine",)
        status, error = await refused(client, "/v1/embeddings", {"input": "a"})
        assert (status, error["param"], error["code"]) == (400, "model", "missing_required_parameter")


@pytest.mark.parametrize(
    ("fields", "param", "status"),
    [
        ({"input": None}, "input", 400),
        ({"input": ""}, "input", 400),
        ({"input": []}, "input", 400),
        ({"input": ["a", ""]}, "input", 400),
        ({"input": ["a", 5]}, "input", 400),
        ({"input": [1000]}, "input", 400),
        ({"input": [1] * 513}, "input", 400),
        ({"input": "a" * 65}, "input", 400),
        ({"model": "other"}, "model", 404),
        ({"model": 5}, "model", 400),
        ({"encoding_format": "hex"}, "encoding_format", 400),
        ({"dimensions": 2}, "dimensions", 400),
        ({"dimensions": 0}, "dimensions", 400),
        ({"truncate": True}, "truncate", 400),
        ({"user": 5}, "user", 400),
    ],
)
async def test_what_is_refused(path: Path, fields: dict[str, Any], param: str, status: int) -> None:
    async with engine(LETTERS, path) as served, client_of(path) as client:
        served.pooling = Pooling("last", longest=65, lengths=(1,))
        got, error = await refused(client, "/v1/embeddings", {"model": MODEL, "input": "a", **fields})
        assert (got, error["param"]) == (status, param)


async def test_a_request_has_so_many_inputs_and_tokens(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with engine(LETTERS, path) as served, client_of(path) as client:
        served.pooling = LAST
        monkeypatch.setattr(embeddings, "_MOST_TOKENS", 5)
        assert (await refused(client, "/v1/embeddings", {"model": MODEL, "input": [[1] * 3] * 2}))[0] == 400
        await answer(client, "/v1/embeddings", {"model": MODEL, "input": [[1] * 3, [1] * 2]})
        monkeypatch.setattr(embeddings, "_MOST_INPUTS", 1)
        assert (await refused(client, "/v1/embeddings", {"model": MODEL, "input": ["a", "b"]}))[0] == 400
        await answer(client, "/v1/embeddings", {"model": MODEL, "input": ["a"]})


async def test_the_clients_key_and_the_adapter_go_with_every_input(path: Path) -> None:
    async with engine(LETTERS, path, adapters=(("tuned", "a-folder"),)) as served, client_of(path) as client:
        served.pooling = LAST
        sent = sent_to_core(served)
        key, body = {"authorization": "Bearer x"}, {"model": "tuned", "input": ["a", "b"]}
        given = await client.post("/v1/embeddings", json=body, headers=key)
        assert given.json()["model"] == "tuned"
        assert [(one.adapter, one.pooling, one.salt) for one in sent] == [("tuned", "last", salt_of(key, {}))] * 2
        served.draining = True
        status, error = await refused(client, "/v1/embeddings", body)
        assert (status, error["code"]) == (503, "engine_unavailable")


async def test_a_core_that_fails_is_said(path: Path) -> None:
    async with engine(LETTERS, path, runner="broken") as served, client_of(path) as client:
        served.pooling = LAST
        status, error = await refused(client, "/v1/embeddings", {"model": MODEL, "input": ["a", "b"]})
        assert (status, error["code"]) == (500, "engine_error")
        assert served.router.idle
