"""Runs the same requests on both backends and compares the results of the core, step by step."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from engine.attention.cache import KvCache
from engine.config import EngineConfig
from engine.core import Core, Runner
from engine.device.graphs import Record, Recording, Step
from engine.device.runner import DeviceRunner
from engine.messages import Add, Embed, Logprobs, Sampling, Stats
from engine.models.linear import Dense, Linear
from engine.models.load import load_model
from engine.models.products import Products
from tests.fakes.adapters import write_adapter
from tests.fakes.tiny_models import make, save

VOCABULARY = 300
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
BLOCK = 4


@dataclass(frozen=True)
class Told:
    """Results: tokens and log probabilities by (group, choice); prompt log probabilities and vectors by group."""

    tokens: dict[tuple[int, int], list[int]] = field(default_factory=lambda: defaultdict(list))
    logprobs: dict[tuple[int, int], list[Logprobs]] = field(default_factory=lambda: defaultdict(list))
    prompts: dict[int, list[Logprobs]] = field(default_factory=dict)
    vectors: dict[int, tuple[float, ...]] = field(default_factory=dict)


def config(folder: Path, **settings: Any) -> EngineConfig:
    """Return settings for a tiny model: 8 sequences, and up to 24 tokens of prompt chunks beside them."""
    common: dict[str, Any]
    common = {"dtype": "float32", "num_blocks": 120, "block_size": BLOCK, "max_sequences": 8, "max_batch_tokens": 32}
    return EngineConfig(str(folder), **(common | {"share_gate": 4} | settings))


class Kept(Products):
    """Products whose weights stay as they are, like a GPU's."""

    def linear(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
        return Dense(weight, bias)


def device_runner(
    settings: EngineConfig, *, overlaps: bool = False, record: Record | None = None, adds: bool | None = None
) -> DeviceRunner:
    """Return the device's runner with a folder's model, on the CPU."""
    model = load_model(Path(settings.model), torch.float32, settings.max_model_len, settings.adapters, products=Kept())
    assert settings.num_blocks is not None
    cache = KvCache(model.attention, settings.num_blocks, settings.block_size, torch.float32)
    return DeviceRunner(settings, model, cache, overlaps=overlaps, record=record, adds=adds)


@dataclass
class Again:
    """A stand-in for a recorded CUDA graph: it repeats the call with the present contents of its inputs."""

    step: Step
    output: torch.Tensor
    replays: int = 0

    def replay(self) -> None:
        self.replays += 1
        self.output.copy_(self.step())


class Recorder:
    """Returns stand-ins for recordings, and keeps them."""

    def __init__(self) -> None:
        self.recordings: list[Again] = []

    def __call__(self, step: Step) -> Recording:
        self.recordings.append(Again(step, step().clone()))
        return self.recordings[-1]


def run(runner: Runner, settings: EngineConfig, adds: Sequence[Add | Embed], every: int = 0) -> tuple[Told, Stats]:
    """Run all requests to the end and return the results. every: steps between two arrivals; 0: all arrive at once."""
    core, told = Core(settings, runner), Told()
    waiting = list(reversed(adds))
    while waiting or core.has_work:
        if waiting:
            core.add(waiting.pop())
        for _ in range(every or (0 if waiting else 1)):
            done = core.step()
            assert not done.failed
            for one in done.tokens:
                told.tokens[one.group, one.choice].append(one.token)
                if one.logprobs:
                    told.logprobs[one.group, one.choice].append(one.logprobs)
            told.prompts.update({s.group: [p for p in s.prompt_logprobs or () if p] for s in done.started})
            told.vectors.update({one.group: one.vector for one in done.embedded})
    core.scheduler.pool.check_integrity([])
    assert core.stats().blocks_used == 0
    return told, core.stats()


def same(mine: Told, theirs: Told) -> None:
    """Assert that both results are the same: tokens exactly, numbers up to rounding."""
    assert mine.tokens == theirs.tokens
    told: list[tuple[Mapping[Any, Sequence[Logprobs]], Mapping[Any, Sequence[Logprobs]]]]
    told = [(mine.logprobs, theirs.logprobs), (mine.prompts, theirs.prompts)]
    for ours, others in told:
        assert ours.keys() == others.keys()
        for key, one in ours.items():
            _same_logprobs(one, others[key])
    assert mine.vectors.keys() == theirs.vectors.keys()
    for group, vector in mine.vectors.items():
        torch.testing.assert_close(torch.tensor(vector), torch.tensor(theirs.vectors[group]), rtol=1e-4, atol=1e-4)


def _same_logprobs(mine: Sequence[Logprobs], theirs: Sequence[Logprobs]) -> None:
    assert [(one.rank, [token for token, _ in one.top]) for one in mine] == [
        (one.rank, [token for token, _ in one.top]) for one in theirs
    ]
    for ours, others in zip(mine, theirs, strict=True):
        values, expected = ([one.own, *(value for _, value in one.top)] for one in (ours, others))
        torch.testing.assert_close(torch.tensor(values), torch.tensor(expected), rtol=1e-4, atol=1e-4)


def group(number: int, prompt: int, n: int, new: int, seed: int, sampling: Sampling | None = None) -> Add:
    """Return n choices of `new` tokens over a prompt that is a prefix of one text for all groups."""
    tokens = tuple(random.Random(7).choices(range(3, VOCABULARY), k=99))[:prompt]
    return Add.alike(number, tokens, n, seed, new, sampling or Sampling(), frozenset({2}))


def write(folder: Path, kind: str = "llama", **settings: Any) -> Path:
    """Write a tiny model into a folder; returns the folder."""
    save(folder, kind, **(SIZES | settings))
    return folder


def adapter(folder: Path, **settings: Any) -> Path:
    """Write an adapter for that model, of one fused product and one that is not fused; returns the folder."""
    modules = ["model.layers.1.self_attn.k_proj", "model.layers.1.mlp.down_proj"]
    write_adapter(folder, make("llama", **(SIZES | settings)), modules, 5)
    return folder
