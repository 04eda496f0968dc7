"""What is reported beside texts, by the server over a core whose runner is a hash: streams and answers agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.messages import Add, Choice, Sampling
from nproxy.openai.errors import ApiError
from tests.engine.asking import answer, ask, chat, complete, refused, sent_to_core, stream, streamed, texts
from tests.engine.conftest import MODEL
from tests.engine.server.letters import LETTERS
from tests.engine.server.test_serving import client_of, engine

COMPLETIONS = "/v1/completions"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "engine.sock"


def entries_of(chunks: list[dict[str, Any]], index: int, key: str) -> list[Any]:
    """Return all log probability entries of one kind of one choice of a stream."""
    given = [choice["logprobs"] for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return [entry for logprobs in given if logprobs for entry in logprobs[key]]


@pytest.mark.parametrize("stop", [None, [*"abcdefghijklmnop"]])
async def test_F1_a_stream_reports_the_same_tokens_as_the_answer(path: Path, stop: Any) -> None:
    fields = {"n": 3, "seed": 4, "max_tokens": 60, "logprobs": True, "top_logprobs": 2, "stop": stop}
    async with engine(LETTERS, path), client_of(path) as client:
        whole = await ask(client, **fields)
        live = await streamed(client, **fields, stream_options={"include_usage": True})
        for index, choice in enumerate(whole["choices"]):
            content = choice["logprobs"]["content"]
            assert entries_of(live.chunks, index, "content") == content
            spelled = b"".join(bytes(entry["bytes"]) for entry in content).decode(errors="replace")
            assert spelled.startswith(texts(whole)[index])
        assert (
            sum(len(choice["logprobs"]["content"]) for choice in whole["choices"])
            == (whole["usage"]["completion_tokens"])
        )
        assert live.chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]


async def test_F3_F7_echo_with_and_without(path: Path) -> None:
    body = {"model": MODEL, "prompt": ["Hé", "uv"], "n": 2, "seed": 4, "echo": True, "max_tokens": 5}
    async with engine(LETTERS, path), client_of(path) as client:
        plain = await answer(client, COMPLETIONS, body)
        asked = await answer(client, COMPLETIONS, {**body, "logprobs": 1})
        live = await stream(client, COMPLETIONS, {**body, "logprobs": 1})
    assert texts(plain) == texts(asked) == [live.texts[index] for index in range(4)]
    assert [choice["logprobs"] for choice in plain["choices"]] == [None] * 4
    for index, choice in enumerate(asked["choices"]):
        logprobs = choice["logprobs"]
        prompt = 4 if index < 2 else 3  # <s>, H, and é in two
        assert [len(logprobs[key]) for key in logprobs] == [prompt + 5] * 4
        assert logprobs["token_logprobs"][0] is None is logprobs["top_logprobs"][0]
        assert all(isinstance(score, float) for score in logprobs["token_logprobs"][1:])
        assert logprobs["text_offset"] == sorted(logprobs["text_offset"])
        assert logprobs["text_offset"][prompt] == 2
        for key, entries in logprobs.items():
            assert entries_of(live.chunks, index, key) == entries


async def test_a_text_is_scored_without_a_new_token(path: Path) -> None:
    """What evaluations ask for."""
    prompts = [[70, 71, 72], [73]]
    body = {"prompt": prompts, "echo": True, "logprobs": 1, "max_tokens": 0}
    async with engine(LETTERS, path), client_of(path) as client:
        scored = await complete(client, **body)
        with_one = await complete(client, **{**body, "max_tokens": 1})
        live = await stream(client, COMPLETIONS, {"model": MODEL, **body})
    assert scored["usage"]["completion_tokens"] == 0
    for index, (choice, more) in enumerate(zip(scored["choices"], with_one["choices"], strict=True)):
        count = len(prompts[index])
        assert choice["logprobs"]["token_logprobs"] == more["logprobs"]["token_logprobs"][:count]
        assert choice["finish_reason"] == "length"
        assert more["text"].startswith(choice["text"])
        assert live.texts[index] == choice["text"]
        assert entries_of(live.chunks, index, "token_logprobs") == choice["logprobs"]["token_logprobs"]


async def test_J9_E10_best_of_shows_the_likeliest(path: Path) -> None:
    body = {"prompt": ["a", "b"], "seed": 4, "max_tokens": 12, "ignore_eos": True}
    async with engine(LETTERS, path), client_of(path) as client:
        drawn = await complete(client, **body, n=5, logprobs=0)
        best = await complete(client, **body, n=2, best_of=5)
        shown = await complete(client, **body, n=1, best_of=5, logprobs=1)
        status, error = await refused(client, COMPLETIONS, {"model": MODEL, **body, "best_of": 3, "stream": True})
    assert len(set(texts(drawn))) >= 9  # so that the best are not the first by chance
    means = [sum(choice["logprobs"]["token_logprobs"]) / 12 for choice in drawn["choices"]]
    ranked = [sorted(range(first, first + 5), key=lambda i: -means[i]) for first in (0, 5)]
    assert texts(best) == [texts(drawn)[index] for of_prompt in ranked for index in of_prompt[:2]]
    assert [choice["logprobs"] for choice in best["choices"]] == [None] * 4
    assert best["usage"]["completion_tokens"] == drawn["usage"]["completion_tokens"] == 120
    assert [choice["logprobs"]["token_logprobs"] for choice in shown["choices"]] == [
        drawn["choices"][of_prompt[0]]["logprobs"]["token_logprobs"] for of_prompt in ranked
    ]
    assert (status, error["param"]) == (400, "best_of")


async def test_prompt_logprobs_and_token_ids(path: Path) -> None:
    async with engine(LETTERS, path), client_of(path) as client:
        fields = {"prompt_logprobs": 0, "return_token_ids": True, "max_tokens": 4, "ignore_eos": True}
        of_chat = await ask(client, **fields)
        (choice,) = (await complete(client, **fields))["choices"]
    for place, ids in ((of_chat, of_chat["choices"][0]["token_ids"]), (choice, choice["token_ids"])):
        assert len(ids) == 4
        assert place["prompt_logprobs"][0] is None
        asked = [[*entry] for entry in place["prompt_logprobs"][1:]]
        assert asked == [[str(token)] for token in place["prompt_token_ids"][1:]]


async def test_E5_cached_tokens(path: Path) -> None:
    """A prompt's full blocks are computed once, its last token always again."""
    body = {"prompt": [[5] * 20, [6] * 20], "n": 2, "max_tokens": 2, "ignore_eos": True}
    async with engine(LETTERS, path), client_of(path) as client:
        first = (await complete(client, **body))["usage"]
        again = (await complete(client, **body))["usage"]
        others = (await complete(client, **body, cache_salt="x"))["usage"]
        keyed = await client.post(COMPLETIONS, json={"model": MODEL, **body}, headers={"authorization": "Bearer x"})
    assert first["prompt_tokens_details"] == {"cached_tokens": 0} == others["prompt_tokens_details"]
    assert again["prompt_tokens_details"] == {"cached_tokens": 32}
    assert keyed.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


async def test_an_adapter_is_a_model_of_its_own_name(path: Path) -> None:
    async with engine(LETTERS, path, adapters=(("tuned", "a-folder"),)) as served, client_of(path) as client:
        listed = (await client.get("/v1/models")).json()["data"]
        assert [(entry["id"], entry.get("parent")) for entry in listed] == [(MODEL, None), ("tuned", MODEL)]
        assert (await client.get("/v1/models/tuned")).json() == listed[1]
        sent = sent_to_core(served)
        assert (await ask(client, model="tuned"))["model"] == "tuned"
        assert (await ask(client))["model"] == MODEL
        assert [message.adapter for message in sent] == ["tuned", None]
        status, error = await refused(client, "/v1/chat/completions", chat(model="other"))
        assert (status, error["code"]) == (404, "model_not_found")
        status, error = await refused(client, "/v1/chat/completions", chat(model=None))
        assert (status, error["param"], error["code"]) == (400, "model", "missing_required_parameter")


async def test_N5_a_queue_that_is_full_is_a_429(path: Path) -> None:
    long = Choice(0, 450, Sampling())
    add = Add(0, (5,), (long,) * 16, frozenset())
    async with engine(LETTERS, path, max_queue=0) as served:
        with (
            served.router.submit([add]),
            served.router.submit([add]) as late,
            pytest.raises(ApiError) as turned_away,
        ):
            await late.inbox.take()
    error = turned_away.value
    assert (error.status, error.type, error.headers["retry-after"]) == (429, "rate_limit_error", "1")
