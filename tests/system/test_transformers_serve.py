"""nproxy in front of `transformers serve`, which answers with one choice regardless of `n`.

It samples only if a request's `generation_config` says so, refuses unknown fields, takes one string as a legacy prompt,
answers 500 for its model list, ends a stream without `[DONE]` and puts usage into the last chunk.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError, OpenAI
from openai.types import CompletionUsage

from tests.docs.play import play
from tests.real.counting_proxy import Counts, counting_proxy
from tests.real.processes import Server, nproxy

pytestmark = pytest.mark.model

PAGE = "docs/guides/transformers-serve.md"
TOKENS = 12
SAMPLED = {"generation_config": json.dumps({"do_sample": True, "temperature": 1.2, "min_new_tokens": TOKENS})}
"""Answers of exactly TOKENS tokens, sampled."""


@pytest.fixture
def counts(transformers_server: Server) -> Iterator[Counts]:
    with counting_proxy(transformers_server.url) as counting:
        yield counting


def asked(folder: Path, **more: Any) -> dict[str, Any]:
    question = [{"role": "user", "content": "Name a colour and say why you like it."}]
    return {"model": str(folder), "messages": question, "max_tokens": TOKENS, "n": 3, "extra_body": SAMPLED, **more}


@pytest.fixture(params=["auto", "fanout"])
def gateway(request: pytest.FixtureRequest, counts: Counts, logs: Path) -> Iterator[Server]:
    """A gateway without learned capabilities, in front of the counting proxy."""
    log = logs / f"{request.node.name}.log"
    with nproxy("--upstream", f"{counts.url}/v1", "--n", request.param, log=log, ready="/health") as running:
        yield running


@pytest.fixture
def client(gateway: Server) -> Iterator[OpenAI]:
    with OpenAI(base_url=gateway.v1, api_key="unused", max_retries=0, timeout=60.0) as opened:
        yield opened


def test_three_choices(client: OpenAI, smollm2_folder: Path) -> None:
    one = client.chat.completions.create(**asked(smollm2_folder, n=1))
    three = client.chat.completions.create(**asked(smollm2_folder))

    assert [choice.index for choice in three.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in three.choices}) == 3
    assert {choice.finish_reason for choice in three.choices} == {"length"}
    assert one.usage and three.usage
    assert three.usage.prompt_tokens == one.usage.prompt_tokens
    assert three.usage.completion_tokens == 3 * TOKENS
    assert three.usage.total_tokens == three.usage.prompt_tokens + 3 * TOKENS


def test_three_choices_streamed(client: OpenAI, smollm2_folder: Path) -> None:
    texts, reasons, usages = ["", "", ""], ["", "", ""], list[CompletionUsage]()
    first: list[int] = []
    streamed: dict[str, Any] = {**asked(smollm2_folder), "stream": True, "stream_options": {"include_usage": True}}
    for chunk in client.chat.completions.create(**streamed):
        assert not usages, "something came after the usage"
        for choice in chunk.choices:
            first.append(choice.index)
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] += choice.finish_reason or ""
        if chunk.usage:
            assert chunk.choices == []
            usages.append(chunk.usage)

    assert first[:3] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert all(texts)
    assert reasons == ["length"] * 3
    [usage] = usages
    assert usage.completion_tokens == 3 * TOKENS
    assert usage.total_tokens == usage.prompt_tokens + 3 * TOKENS


def test_E8_no_usage_where_none_was_asked_for(client: OpenAI, smollm2_folder: Path) -> None:
    chunks = list(client.chat.completions.create(**asked(smollm2_folder), stream=True))
    assert all(chunk.usage is None and len(chunk.choices) == 1 for chunk in chunks)


def test_the_stream_helper_completes(client: OpenAI, smollm2_folder: Path) -> None:
    # the helper rejects choices that were cut at their length, so these end at their first full stop
    with client.chat.completions.stream(**asked(smollm2_folder, stop=".", max_tokens=400)) as stream:
        folded = stream.get_final_completion()
    assert [choice.index for choice in folded.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in folded.choices}) == 3


def test_legacy_completions(client: OpenAI, smollm2_folder: Path) -> None:
    given = client.completions.create(
        model=str(smollm2_folder), prompt="Once upon a time", n=3, max_tokens=TOKENS, extra_body=SAMPLED
    )
    assert [choice.index for choice in given.choices] == [0, 1, 2]
    assert len({choice.text for choice in given.choices}) == 3


def test_Q6_the_first_answer_teaches(
    transformers_server: Server, counts: Counts, smollm2_folder: Path, logs: Path
) -> None:
    with (
        nproxy("--upstream", f"{counts.url}/v1", "--n", "auto", log=logs / "teaches.log", ready="/health") as gateway,
        OpenAI(base_url=gateway.v1, api_key="unused", max_retries=0) as client,
    ):
        client.chat.completions.create(**asked(smollm2_folder))
        assert [call.get("n") for call in counts.calls] == [3, None, None]
        client.chat.completions.create(**asked(smollm2_folder))
        assert [call.get("n") for call in counts.calls[3:]] == [None, None, None]


def test_the_page_about_it(transformers_server: Server, smollm2_folder: Path, tmp_path: Path) -> None:
    there = transformers_server.url.removeprefix("http://")
    printed = play(PAGE, tmp_path, real={"127.0.0.1:8001": there, "Qwen/Qwen3-8B": str(smollm2_folder)})
    [answer] = [json.loads(said) for said in printed if said.startswith("{")]
    assert len({choice["message"]["content"] for choice in answer["choices"]}) == 3


def test_what_it_does_not_draw_is_alike(client: OpenAI, smollm2_folder: Path) -> None:
    """As the documentation says: without `generation_config`, neither temperature nor seed changes the answer."""
    alike = client.chat.completions.create(**asked(smollm2_folder, extra_body={}, temperature=1.2, max_tokens=4))
    assert len({choice.message.content for choice in alike.choices}) == 1


def test_an_upstream_model_that_is_not_there(client: OpenAI, counts: Counts) -> None:
    """The model list cannot be read, so any name is sent to the server; its refusal comes back in the envelope."""
    with pytest.raises(BadRequestError, match="Server is pinned") as raised:
        client.chat.completions.create(**asked(Path("no-such-model")))
    assert raised.value.type == "invalid_request_error"


def test_N7_parallel_one(counts: Counts, smollm2_folder: Path, logs: Path, tmp_path: Path) -> None:
    """The server seeds one generator for the whole process, so that only consecutive calls are reproducible."""
    config = tmp_path / "one-slot.yaml"
    config.write_text(
        f"upstreams:\n  - {{name: slot, replicas: ['{counts.url}/v1'], models: auto, n: fanout, parallel: 1}}\n"
    )
    with (
        nproxy("--config", str(config), log=logs / "parallel-one.log", ready="/health") as gateway,
        OpenAI(base_url=gateway.v1, api_key="unused", max_retries=0, timeout=60.0) as client,
    ):
        eight = client.chat.completions.create(**asked(smollm2_folder, n=8, seed=100))
        assert counts.most == 1
        singles = [client.chat.completions.create(**asked(smollm2_folder, n=1, seed=s)) for s in range(100, 108)]
    assert [choice.index for choice in eight.choices] == list(range(8))
    assert [choice.message.content for choice in eight.choices] == [one.choices[0].message.content for one in singles]
    assert [call.get("seed") for call in counts.calls[:8]] == list(range(100, 108))
    assert counts.most == 1
