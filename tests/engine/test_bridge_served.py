"""A model that runs through transformers' own classes, from its folder to the wire: `python -m engine` over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.engine.asking import ask, counts, streamed, texts
from tests.engine.conftest import engine
from tests.fakes import tiny_chat
from tests.fakes.tiny_models import reference_logits
from tests.real.processes import Server

GEMMA: dict[str, Any] = {"kind": "gemma2", "sliding_window": 8, "head_dim": 8, "query_pre_attn_scalar": 24}
ASKED: dict[str, Any] = {"n": 2, "seed": 5, "max_tokens": 12, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_chat.save(tmp_path_factory.mktemp("bridge"), 256, **GEMMA)


@pytest.fixture(scope="module")
def served(folder: Path, engine_logs: Path) -> Iterator[Server]:
    with engine(folder, "--num-blocks", "64", log=engine_logs / "bridge.log") as running:
        yield running


async def test_choices_stream_and_log_probabilities(folder: Path, served: Server) -> None:
    """Two choices that share a prompt, whole and as a stream; each token's log probability is transformers' own."""
    async with httpx.AsyncClient(base_url=served.url, timeout=60.0, trust_env=False) as client:
        whole = await ask(client, logprobs=True, top_logprobs=2, return_token_ids=True, **ASKED)
        live = await streamed(client, logprobs=True, **ASKED)
    assert len(set(texts(whole))) == 2
    assert counts(whole["usage"])[1] == 24
    assert [live.texts[index] for index in range(2)] == texts(whole)
    assert live.reasons == {0: ["length"], 1: ["length"]}
    assert live.done

    model, prompt = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager"), whole["prompt_token_ids"]
    for choice in whole["choices"]:
        drawn = choice["token_ids"]
        entries = choice["logprobs"]["content"]
        expected = reference_logits(model, prompt + drawn).log_softmax(-1)[len(prompt) - 1 : -1]
        own = [float(row[token]) for row, token in zip(expected, drawn, strict=True)]
        assert [entry["logprob"] for entry in entries] == pytest.approx(own, abs=1e-4)
        likeliest = [[one["logprob"] for one in entry["top_logprobs"]] for entry in entries]
        torch.testing.assert_close(torch.tensor(likeliest), expected.topk(2).values, atol=1e-4, rtol=0)
        streamed_entries = [
            entry["logprob"]
            for chunk in live.chunks
            for each in chunk["choices"]
            if each["index"] == choice["index"] and each["logprobs"]
            for entry in each["logprobs"]["content"]
        ]
        assert streamed_entries == pytest.approx(own, abs=1e-4)
