"""Deterministic mode on the CPU: tokens and log probabilities are bit for bit those of the request alone.

Models of random weights, in which thousands of tokens are about equally likely, so that any other rounding shows soon.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import deterministic_trial
from engine.batch import Batch, Draw, Past, StepOutput
from engine.config import EngineConfig
from engine.core import Core
from engine.cpu_runner import CpuRunner
from engine.errors import ConfigError
from engine.loading import load_runner
from engine.messages import Add, Logprobs, Ready, Sampling, Stats
from engine.models.bridge import Bridge
from engine.models.lora import Pair, add_pair
from engine.models.ops import DeterministicOps, TorchOps
from engine.sampling.sampler import Sampler
from tests.fakes.adapters import write_adapter
from tests.fakes.tiny_models import save

SIZE = 4
Answers = dict[tuple[int, int], list[tuple[int, Logprobs | None]]]


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model whose sizes are no multiples of a vector's, and whose windows end inside a span."""
    folder = tmp_path_factory.mktemp("tiny")
    save(folder, "mistral", sliding_window=90, vocab_size=1003, intermediate_size=71, max_position_embeddings=700)
    return folder


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def tiny(request: pytest.FixtureRequest, tiny_folder: Path) -> CpuRunner:
    return load(tiny_folder, request.param)


def load(model: Path, dtype: str, **settings: Any) -> CpuRunner:
    settings = {"num_blocks": 900, "block_size": SIZE, "deterministic": True} | settings
    return CpuRunner.load(EngineConfig(str(model), dtype=dtype, **settings))  # type: ignore[arg-type]


def answers(
    runner: CpuRunner,
    adds: Sequence[Add],
    *,
    blocks: int | None = None,
    every: int = 0,
    cache: bool = True,
    warm: Sequence[Add] = (),
    deterministic: bool = True,
) -> tuple[Answers, Stats]:
    """Every choice's tokens with their log probabilities. warm: groups that have come and gone before these.

    every: steps between the arrivals.
    """
    config = EngineConfig(
        "",
        block_size=runner.ready.block_size,
        max_sequences=64,
        max_batch_tokens=64 + 40,
        share_gate=16,
        adapters=(("a", ""), ("b", "")),
        prefix_cache=cache,
        deterministic=deterministic,
    )
    answered: Answers = defaultdict(list)
    ready = runner.ready if blocks is None else replace(runner.ready, blocks=blocks)
    engine = Core(config, _Part(runner, ready))
    for coming in ([*warm], [*adds]):
        answered.clear()
        while coming or engine.has_work:
            if coming:
                engine.add(coming.pop(0))
            for _ in range(every or (0 if coming else 1)):
                done = engine.step()
                assert not done.failed
                for token in done.tokens:
                    answered[token.group, token.choice].append((token.token, token.logprobs))
    return answered, engine.stats()


class _Part:
    """A runner of which only the first blocks are used."""

    overlaps = False

    def __init__(self, runner: CpuRunner, ready: Ready) -> None:
        self.ready = ready
        self.submit = runner.submit


def group(number: int, prompt: int, n: int, new: int, *, like: int | None = None, vocab: int = 1003) -> Add:
    """A request with every sampled token's log probability; `like` another one's prompt, as far as both go."""
    tokens = tuple(random.Random(number if like is None else like).choices(range(3, vocab), k=prompt))
    return replace(Add.alike(number, tokens, n, number * 100, new, Sampling(), frozenset()), logprobs=3)


def alone(runner: CpuRunner, one: Add, *, deterministic: bool = True) -> Answers:
    """Each choice as a request of its own, of an engine that knows nothing yet."""
    return {
        (one.group, number): answers(runner, [replace(one, choices=(choice,))], deterministic=deterministic)[0][
            one.group, 0
        ]
        for number, choice in enumerate(one.choices)
    }


TRAFFIC = [
    group(1, 37, 4, 16),
    group(2, 3, 1, 20),
    group(3, 150, 6, 12),
    group(4, 18, 2, 14),
    group(5, 81, 3, 18, like=3),
    group(6, 150, 5, 9, like=3),
    group(7, 530, 3, 6),
]


@pytest.fixture(scope="module")
def apart(tiny: CpuRunner) -> Answers:
    """What every choice of TRAFFIC is when it is asked for by itself."""
    return {key: answered for one in TRAFFIC for key, answered in alone(tiny, one).items()}


def test_choices_equal_singles(tiny: CpuRunner, apart: Answers) -> None:
    for one in TRAFFIC:
        assert answers(tiny, [one])[0] == {key: answered for key, answered in apart.items() if key[0] == one.group}
    assert len({tuple(token for token, _ in answered) for answered in apart.values()}) == len(apart)


@pytest.mark.parametrize("every", [0, 1, 4])
def test_beside_others(tiny: CpuRunner, apart: Answers, every: int) -> None:
    answered, stats = answers(tiny, TRAFFIC, every=every)
    assert answered == apart
    assert stats.prefix_kv_bytes_read > 0


@pytest.mark.parametrize(("blocks", "cache"), [(57, True), (80, False)])
def test_preempted(tiny: CpuRunner, apart: Answers, blocks: int, cache: bool) -> None:
    answered, stats = answers(tiny, TRAFFIC[:-1], blocks=blocks, every=1, cache=cache)
    assert stats.preemptions > 2
    assert answered == {key: mine for key, mine in apart.items() if key[0] != TRAFFIC[-1].group}


def test_behind_a_warm_cache(tiny: CpuRunner, apart: Answers) -> None:
    warm = [replace(one, group=one.group + 100) for one in TRAFFIC] + [group(8, 120, 2, 20, like=3)]
    answered, stats = answers(tiny, TRAFFIC, warm=warm, every=2)
    assert stats.prefix_cache_hits > 300
    assert answered == apart


@pytest.mark.parametrize("threads", [1, 3])
def test_any_number_of_threads(tiny: CpuRunner, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        one = group(9, 45, 2, 12)
        answered, _ = answers(tiny, [TRAFFIC[0], TRAFFIC[3], one], every=1)
        assert {key: answered[key] for key in answered if key[0] == 9} == alone(tiny, one)
    finally:
        torch.set_num_threads(before)


def test_the_default_mode_rounds_by_its_company(tiny_folder: Path) -> None:
    runner, one = load(tiny_folder, "bfloat16", deterministic=False), TRAFFIC[2]
    together, _ = answers(runner, TRAFFIC[:-1], every=1, deterministic=False)
    apart = alone(runner, one, deterministic=False)
    assert any(together[key] != answered for key, answered in apart.items())


EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}


@pytest.mark.parametrize(
    ("kind", "dtype", "settings"),
    [
        ("qwen3", "bfloat16", {"head_dim": 16}),
        ("qwen3_moe", "bfloat16", {"num_experts": 4, **EXPERTS}),
        ("gpt_oss", "bfloat16", {"num_local_experts": 4, "sliding_window": 8, "num_hidden_layers": 2, **EXPERTS}),
        ("gpt_neox", "float32", {"intermediate_size": 71}),
    ],
)
def test_families(tmp_path: Path, kind: str, dtype: str, settings: dict[str, Any]) -> None:
    save(tmp_path, kind, **settings)
    runner = load(tmp_path, dtype, max_sequences=4)
    adds = [group(1, 21, 3, 8, vocab=97), group(2, 45, 2, 8, vocab=97)]
    answered, _ = answers(runner, adds, every=2)
    assert answered == {key: mine for one in adds for key, mine in alone(runner, one).items()}


def test_rows_of_transformers_classes_run_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, "gpt2")
    runner, plain, seen = load(tmp_path, "bfloat16"), Bridge.run, list[int]()

    def run(model: Bridge, tokens: torch.Tensor, *more: Any) -> torch.Tensor:
        seen.append(len(tokens))
        return plain(model, tokens, *more)

    monkeypatch.setattr(Bridge, "run", run)
    answers(runner, [group(1, 21, 3, 4, vocab=97)])
    assert seen == [21] + [1] * 9


@pytest.mark.parametrize("rank", [1, 4, 6])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_adapters(tmp_path: Path, dtype: str, rank: int) -> None:
    model = save(tmp_path / "model")
    modules = [f"model.layers.{i}.{product}" for i in range(3) for product in ("self_attn.q_proj", "mlp.down_proj")]
    for seed, name in enumerate("ab"):
        write_adapter(tmp_path / name, model, modules, seed, rank=rank)
    runner = load(tmp_path / "model", dtype, adapters=(("a", str(tmp_path / "a")), ("b", str(tmp_path / "b"))))
    adds = [replace(group(i, 30, 3, 10, vocab=97), adapter=name) for i, name in enumerate(("a", "b", None, "a"))]
    answered, _ = answers(runner, adds, every=1)
    assert answered == {key: mine for one in adds for key, mine in alone(runner, one).items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gate_is_the_same_wherever_it_stands(dtype: torch.dtype) -> None:
    gate, up = (torch.randn(2, 3000, generator=torch.Generator().manual_seed(3)) * 3).to(dtype)
    ops = DeterministicOps(lambda *_: torch.empty(0), None, dtype)
    whole = ops.silu_mul(torch.cat((gate, up)).unsqueeze(0))[0]
    alone = [ops.silu_mul(torch.stack((gate[i], up[i])).unsqueeze(0))[0, 0] for i in range(3000)]
    assert torch.equal(whole, torch.stack(alone))


def test_draws_do_not_depend_on_the_draws_beside_them() -> None:
    """Of more scores than torch sums in one go on one thread, by every setting that looks at a whole row."""
    many = [{}, {"temperature": 0.7}, {"top_k": 50}, {"top_p": 0.9}, {"min_p": 0.02}, {"temperature": 0.0}]
    many += [{"temperature": 1.3, "top_p": 0.8, "top_k": 900}, {"repetition_penalty": 1.2, "frequency_penalty": 0.3}]
    past = Past((5, 6, 7), [8, 9, 8])
    settings = [Sampling(**one) for one in many]  # type: ignore[arg-type]
    draws = [Draw(i, 70 + i, 6, settings[i % len(settings)], past, logprobs=5) for i in range(24)]
    logits = torch.randn(24, 40_003, generator=torch.Generator().manual_seed(1)).mul_(3).bfloat16()
    together = Sampler().sample(logits, range(24), draws, {})
    for i, draw in enumerate(draws):
        alone = Sampler().sample(logits[i : i + 1].clone(), [0], [draw], {})
        assert (alone.tokens[0], alone.logprobs[i]) == (together.tokens[i], together.logprobs[i])


def test_blocks_must_divide_the_span_of_an_item(tiny_folder: Path) -> None:
    """Else a row's items would depend on the rows beside it: 512 and 256 tokens are 504 and 240 in blocks of 24."""
    settings = EngineConfig(str(tiny_folder), num_blocks=20, block_size=24)
    load_runner(settings)
    with pytest.raises(ConfigError, match="deterministic: block_size must divide 256, and 24 does not"):
        load_runner(replace(settings, deterministic=True))


@pytest.mark.parametrize("places", [slice(None), slice(5, 6)], ids=["every place", "one within"])
def test_loading_tries_what_it_promises(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, places: Any) -> None:
    settings = EngineConfig(str(tiny_folder), dtype="bfloat16", num_blocks=20, deterministic=True)
    assert load_runner(settings).ready.dtype == "bfloat16"
    plain = TorchOps.norm

    def by_place(*given: Any) -> torch.Tensor:
        normed = plain(*given)
        normed[places] *= 1 + torch.arange(len(normed)).unsqueeze(1)[places] / 100
        return normed

    monkeypatch.setattr(TorchOps, "norm", by_place)
    with pytest.raises(ConfigError, match="deterministic: here a row's numbers depend on the rows beside it"):
        load_runner(settings)
    load_runner(replace(settings, deterministic=False))


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_what_shows_behind_some_tokens_only_is_found_with_small_blocks_too(block_size: int) -> None:
    ready = Ready(
        vocab_size=100,
        max_model_len=700,
        blocks=80,
        block_size=block_size,
        kv_bytes_per_token=1,
        eos_tokens=frozenset(),
        device="cpu",
        dtype="float32",
    )

    def run(batch: Batch, *, wrong: bool) -> StepOutput:
        drawn = [(row, 7 + (wrong and place == 1 and row.position > 8)) for place, row in enumerate(batch.rows)]
        return StepOutput(
            tokens=tuple([(row.sequence, token) for row, token in drawn]),
            logprobs={row.sequence: Logprobs(-1.0, 1) for row, _ in drawn},
        )

    assert deterministic_trial.holds(partial(run, wrong=False), ready, 16, 0)
    assert not deterministic_trial.holds(partial(run, wrong=True), ready, 16, 0)


def test_loading_tries_adapters_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = save(tmp_path / "model")
    write_adapter(tmp_path / "a", model, ["model.layers.0.mlp.down_proj"], 1)
    settings = EngineConfig(str(tmp_path / "model"), dtype="float32", num_blocks=20, deterministic=True)
    adapted = replace(settings, adapters=(("a", str(tmp_path / "a")),))
    load_runner(adapted)

    def by_place(y: torch.Tensor, x: torch.Tensor, pair: Pair, tokens: torch.Tensor) -> None:
        add_pair(y, x * (1 + torch.arange(len(x)).unsqueeze(1) / 100), pair, tokens)

    monkeypatch.setattr("engine.models.llama.add_pair", by_place)
    load_runner(settings)
    with pytest.raises(
        ConfigError, match="deterministic: here a row's numbers depend on the rows beside it with the adapter a;"
    ):
        load_runner(adapted)


@pytest.mark.model
@pytest.mark.timeout(300)
def test_the_real_model(default_model: Path) -> None:
    runner = load(default_model, "bfloat16", num_blocks=64, block_size=16, max_sequences=4)
    adds = [group(1, 40, 2, 10, vocab=40_000), group(2, 20, 1, 6, vocab=40_000)]
    answered, stats = answers(runner, adds, blocks=5, every=2)
    assert stats.preemptions > 0
    assert answered == {key: mine for one in adds for key, mine in alone(runner, one).items()}
