"""Embeddings of the core: pooled hidden states, whatever chunks a prompt was computed in, against transformers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from engine.config import EngineConfig
from engine.core import Core
from engine.cpu_runner import CpuRunner
from engine.messages import Add, Embed, Sampling
from tests.fakes.tiny_models import make, save


@pytest.mark.parametrize(
    ("kind", "settings"), [("llama", {}), ("gemma2", {"head_dim": 8, "sliding_window": 8})], ids=str
)
def test_pooled_hidden_states_are_those_of_transformers(tmp_path: Path, kind: str, settings: dict[str, Any]) -> None:
    model = save(tmp_path, kind, **settings)
    config = EngineConfig(
        str(tmp_path), dtype="float32", block_size=4, num_blocks=64, max_sequences=4, max_batch_tokens=16
    )
    core = Core(config, CpuRunner.load(config))
    chance = random.Random(5)
    prompts = [tuple(chance.randrange(3, 97) for _ in range(length)) for length in (30, 30, 1, 7)]
    poolings: tuple[Literal["mean", "last"], ...] = ("mean", "last", "mean", "last")
    for group, (prompt, pooling) in enumerate(zip(prompts, poolings, strict=True)):
        core.add(Embed(group, prompt, pooling))
    core.add(Add.alike(9, prompts[0], 2, 0, 3, Sampling(), frozenset()))  # an answer is drawn beside them
    vectors: dict[int, torch.Tensor] = {}
    drawn = 0
    while core.has_work:
        done = core.step()
        assert not done.failed
        vectors |= {each.group: torch.tensor(each.vector) for each in done.embedded}
        drawn += len(done.tokens)
    assert drawn == 6
    for group, (prompt, pooling) in enumerate(zip(prompts, poolings, strict=True)):
        with torch.no_grad():
            states = model.base_model(torch.tensor([prompt])).last_hidden_state[0]
        expected = states.mean(0) if pooling == "mean" else states[-1]
        torch.testing.assert_close(vectors[group], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_a_vector_that_is_not_of_numbers_is_a_failure(tmp_path: Path, pooling: Literal["mean", "last"]) -> None:
    model = make()
    with torch.no_grad():
        model.get_input_embeddings().weight[7] = 1e5  # more than float16 holds
    model.save_pretrained(tmp_path)
    config = EngineConfig(str(tmp_path), dtype="float16", num_blocks=64)
    core = Core(config, CpuRunner.load(config))
    core.add(Embed(1, (5, 6, 7), pooling))
    core.add(Embed(2, (5, 6, 8), pooling))
    done = core.step()
    assert [(one.group, one.kind) for one in done.failed] == [(1, "failed")]
    assert "not finite numbers" in done.failed[0].message
    assert [one.group for one in done.embedded] == [2]
    assert not core.has_work
    assert core.stats().blocks_used == 0
