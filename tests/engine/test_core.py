"""The engine as a library: what a step tells, and what happens when a step cannot be run."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import pytest

from engine.batch import Batch, StepOutput
from engine.config import EngineConfig, cpu_pool
from engine.core import Core
from engine.errors import ConfigError, CoreFailed
from engine.messages import Abort, Add, Choice, Embed, Logprobs, Sampling
from engine.scheduler import Scheduler
from tests.fakes.runner import HashRunner, expected, ready

PROMPT = (5, 6, 7, 8, 9, 10)


def make() -> tuple[Core, HashRunner]:
    runner = HashRunner(ready())
    config = EngineConfig("none", max_batch_tokens=64, max_sequences=16, share_gate=0, block_size=4)
    return Core(config, runner), runner


def add(group: int, n: int = 2, new: int = 3) -> Add:
    return Add.alike(group, PROMPT, n, 0, new, Sampling(), frozenset())


def test_a_step_without_work_runs_nothing() -> None:
    engine, runner = make()
    assert not engine.has_work
    done = engine.step()
    assert (done.tokens, done.failed, done.batch_sequences, done.stats.steps) == ((), (), 0, 0)
    assert not runner.batches


def test_a_step_tells_what_it_did() -> None:
    engine, _ = make()
    engine.add(add(1))
    first = engine.step()
    assert (first.batch_sequences, first.stats.running, first.stats.prompt_tokens_computed) == (1, 2, 6)
    second = engine.step()
    assert second.batch_sequences == 2
    assert [(drawn.choice, drawn.token) for drawn in second.tokens] == [
        (choice, expected(PROMPT, choice, 2)[1]) for choice in range(2)
    ]
    assert second.seconds > 0
    # Each row reads 7 tokens; the first block's 4 are read once for both. 100 bytes of KV a token.
    assert (second.stats.kv_bytes_read, second.stats.prefix_kv_bytes_read) == (1000, 400)
    assert second.stats.kv_bytes_unshared == 1400
    assert second.stats.blocks_shared == 1


def test_sampling_reaches_every_draw() -> None:
    engine, runner = make()
    engine.add(Add.alike(1, PROMPT, 2, 40, 3, Sampling(0.5, 7, 0.9), frozenset()))
    engine.step()
    engine.step()
    draws = [*runner.batches[0].chunks[0].draws, *runner.batches[1].draws]
    assert [(draw.seed, draw.position) for draw in draws] == [(40, 6), (41, 6), (40, 7), (41, 7)]
    assert {(draw.sampling.temperature, draw.sampling.top_k, draw.sampling.top_p) for draw in draws} == {(0.5, 7, 0.9)}


def test_every_choice_is_drawn_as_it_asks_and_ends_at_its_own_limit() -> None:
    engine, runner = make()
    choices = (Choice(40, 2, Sampling(0.0)), Choice(7, 1, Sampling(0.5)), Choice(9, 4, Sampling(1.0, 5, 0.9)))
    engine.add(Add(1, PROMPT, choices, frozenset()))
    tokens: dict[int, list[int]] = {0: [], 1: [], 2: []}
    ends = {}
    while engine.has_work:
        for drawn in engine.step().tokens:
            tokens[drawn.choice].append(drawn.token)
            if drawn.finish:
                ends[drawn.choice] = drawn.finish
    assert tokens == {number: expected(PROMPT, choice.seed, choice.max_tokens) for number, choice in enumerate(choices)}
    assert ends == {0: "length", 1: "length", 2: "length"}
    assert engine.stats().prompt_tokens_computed == len(PROMPT)
    draws = [*runner.batches[0].chunks[0].draws, *runner.batches[1].draws]
    assert [(draw.seed, draw.sampling.temperature, draw.sampling.top_k, draw.sampling.top_p) for draw in draws] == [
        (40, 0.0, 0, 1.0),
        (7, 0.5, 0, 1.0),
        (9, 1.0, 5, 0.9),
        (40, 0.0, 0, 1.0),
        (9, 1.0, 5, 0.9),
    ]


def test_a_step_that_cannot_be_run_ends_its_groups_and_no_others() -> None:
    engine, runner = make()
    engine.add(add(1))
    engine.add(add(2, n=3))
    engine.step()
    runner.failing = True
    done = engine.step()
    assert [(failed.group, failed.message, failed.kind) for failed in done.failed] == [
        (1, "the engine failed while computing this answer", "failed"),
        (2, "the engine failed while computing this answer", "failed"),
    ]
    assert (done.tokens, done.stats.blocks_used, done.stats.running) == ((), 0, 0)
    runner.failing = False
    engine.add(add(3))
    assert [drawn.group for drawn in engine.step().tokens] == [3, 3]


def test_the_engine_gives_up_when_step_after_step_fails() -> None:
    engine, runner = make()
    runner.failing = True
    for group in (1, 2):
        engine.add(add(group))
        assert engine.step().failed
    engine.add(add(3))
    with pytest.raises(CoreFailed, match="3 steps in a row failed, the last with MemoryError"):
        engine.step()


class Overflowing(HashRunner):
    """A runner whose sums of hidden states begin with this number."""

    def __init__(self, number: float) -> None:
        super().__init__(ready())
        self.number = number

    def submit(self, batch: Batch) -> StepOutput:
        output = super().submit(batch)
        return replace(output, pooled=dict.fromkeys(output.pooled, (self.number, 1.0)))


@pytest.mark.parametrize("number", [math.inf, -math.inf, math.nan])
def test_a_vector_that_is_not_finite_fails_its_prompt(number: float) -> None:
    engine = Core(EngineConfig("none", max_batch_tokens=64, max_sequences=16, block_size=4), Overflowing(number))
    engine.add(Embed(1, PROMPT, "mean"))
    done = engine.step()
    assert done.embedded == ()
    assert [(one.group, one.message, one.kind) for one in done.failed] == [
        (1, "the model's hidden states are not finite numbers", "failed")
    ]


class Scoring(HashRunner):
    """A runner whose log probabilities are all this number."""

    def __init__(self, number: float) -> None:
        super().__init__(ready())
        self.score = Logprobs(number, 1)

    def submit(self, batch: Batch) -> StepOutput:
        output = super().submit(batch)
        prompts = {sequence: (self.score,) * len(scores) for sequence, scores in output.prompt_logprobs.items()}
        return replace(output, logprobs=dict.fromkeys(output.logprobs, self.score), prompt_logprobs=prompts)


@pytest.mark.parametrize("asked", ["logprobs", "prompt_logprobs"])
@pytest.mark.parametrize(("number", "failures"), [(-math.inf, []), (math.nan, [(1, "failed")])])
def test_only_a_log_probability_that_is_no_number_fails_its_group(
    asked: str, number: float, failures: list[tuple[int, str]]
) -> None:
    config = EngineConfig("none", max_batch_tokens=64, max_sequences=16, block_size=4, prefix_cache=False)
    engine = Core(config, Scoring(number))
    engine.add(replace(add(1), **{asked: 0}))  # type: ignore[arg-type]
    engine.add(add(2))
    done = engine.step()
    assert [(one.group, one.kind) for one in done.failed] == failures
    assert [drawn.group for drawn in done.tokens] == ([2, 2] if failures else [1, 1, 2, 2])


def test_the_counts_are_reported_after_an_abort_that_leaves_nothing_to_do() -> None:
    engine, _ = make()
    engine.add(add(1))
    engine.step()
    engine.abort(Abort(1))
    assert engine.has_work
    assert engine.step().stats.blocks_used == 0
    assert not engine.has_work


def test_a_step_tells_how_many_messages_it_knows() -> None:
    engine, _ = make()
    assert engine.step().taken == 0
    engine.add(add(1))
    engine.abort(Abort(7))  # of nobody
    assert engine.step().taken == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"block_size": 0}, "block_size must be at least 1"),
        ({"num_blocks": 0}, "num_blocks must be at least 1"),
        ({"max_model_len": 0}, "max_model_len must be at least 1"),
        ({"max_sequences": 0}, "max_sequences must be at least 1"),
        ({"max_logprobs": -1}, "max_logprobs must not be negative"),
        ({"adapters": (("a", "x"), ("a", "y"))}, "a unique name"),
        ({"adapters": (("m", "x"),), "served_model_name": "m"}, "a unique name"),
        ({"kv_fraction": 1.0}, "kv_fraction must be between 0 and 1"),
        ({"share_gate": -1}, "share_gate must not be negative"),
        ({"dtype": "bf16"}, "dtype must be auto, float32, bfloat16 or float16, not 'bf16'"),
        ({"dtype": None}, "dtype must be auto, float32, bfloat16 or float16, not None"),
        ({"quantization": "int4"}, "quantization must be int8 or None, not 'int4'"),
        ({"device": "cuda:0"}, "device must be auto, cpu or cuda, not 'cuda:0'"),
        ({"kernels": "C"}, "kernels must be auto, torch, native or triton, not 'C'"),
        ({"pooling": "max"}, "pooling must be mean, last or None, not 'max'"),
        ({"max_sequences": 2.5}, "max_sequences must be an integer, not 2.5"),
        ({"max_model_len": "8"}, "max_model_len must be an integer, not '8'"),
        ({"block_size": True}, "block_size must be an integer, not True"),
        ({"max_logprobs": None}, "max_logprobs must be an integer, not None"),
        ({"seed": "a"}, "seed must be an integer, not 'a'"),
        ({"deterministic": "no"}, "deterministic must be True or False, not 'no'"),
        ({"kv_fraction": "0.5"}, "kv_fraction must be a number, not '0.5'"),
        ({"adapters": ("folder",)}, "adapters must be pairs of a name and a folder, not \\('folder',\\)"),
        ({"max_batch_tokens": 271}, "must be at least max_sequences \\(256\\) plus block_size \\(16\\)"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig("none", **settings)  # type: ignore[arg-type]


def test_a_step_holds_what_suits_the_device_and_at_least_all_sequences() -> None:
    assert [EngineConfig("m").batch_tokens(device) for device in ("cpu", "cuda")] == [1024, 8192]
    assert EngineConfig("m", max_sequences=9000).batch_tokens("cuda") == 9016
    assert EngineConfig("m", max_batch_tokens=300).batch_tokens("cuda") == 300


@pytest.mark.parametrize(("found", "tokens"), [(None, 1024), (600, 600)])
def test_a_step_holds_what_the_runner_has_found_room_for(found: int | None, tokens: int) -> None:
    scheduler = Scheduler(EngineConfig("m"), replace(ready(blocks=1024, max_model_len=4000), batch_tokens=found))
    scheduler.add(Add.alike(0, tuple(range(1, 3001)), 1, 0, 1, Sampling(), frozenset()))
    assert [len(chunk.tokens) for chunk in scheduler.schedule().chunks] == [tokens]


def test_the_pool_is_sized_by_memory_unless_it_is_given() -> None:
    gib, token = 1 << 30, 23040
    assert EngineConfig("m", num_blocks=7).kv_blocks(token, gib) == 7
    assert EngineConfig("m").kv_blocks(token, 2 * gib) == gib // 2 // (16 * token)
    assert EngineConfig("m").kv_blocks(token, 64 * gib, cap=gib) == gib // (16 * token)
    assert EngineConfig("m", kv_fraction=0.5).kv_blocks(token, 64 * gib, cap=gib) == 32 * gib // (16 * token)
    assert EngineConfig("m").kv_blocks(token, 80 * gib, 0.9) == int(72 * gib) // (16 * token)
    with pytest.raises(ConfigError, match="are too few for one block"):
        EngineConfig("m").kv_blocks(token, 1000)
    assert [cpu_pool(longest) for longest in (0, gib // 4, 377 << 20, gib)] == [gib // 2, gib // 2, 754 << 20, gib]


def test_the_scheduling_half_imports_no_torch() -> None:
    code = (
        "import sys, engine.config, engine.errors, engine.sequence, engine.blocks, engine.scheduler\n"
        "import engine.batch, engine.messages, engine.core\n"
        "assert 'asyncio' not in sys.modules, 'asyncio'\n"
        "import engine.worker, engine.channel\n"
        "print(sorted({'torch', 'triton', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (found.stdout, found.stderr) == ("[]\n", "")


def test_the_gate_is_what_pays_on_the_device() -> None:
    assert EngineConfig("none").gate("cpu", 4096) == 64
    assert EngineConfig("none").gate("cuda", 4096) == 1024
    assert EngineConfig("none").gate("cuda", 1000) == 4195  # tokens that make 4 MiB at least
    assert EngineConfig("none", share_gate=0).gate("cuda", 4096) == 0


@pytest.mark.parametrize(("prompt", "shared"), [(40, False), (80, True)])
def test_a_prefix_is_shared_from_the_gate_on(prompt: int, shared: bool) -> None:
    about = replace(ready(), device="cpu")
    core = Core(EngineConfig("none", max_batch_tokens=128, max_sequences=4, block_size=4), HashRunner(about))
    core.add(Add.alike(1, tuple(range(prompt)), 2, 0, 4, Sampling(), frozenset()))
    while core.has_work:
        core.step()
    assert (core.stats().prefix_kv_bytes_read > 0) == shared


def test_the_gate_of_a_device_is_one_of_bytes_of_a_layer() -> None:
    about = replace(ready(max_model_len=4000), device="cuda", kv_bytes_per_token=40_960, layers=10)
    for prompt, shared in ((1020, False), (1028, True)):  # 4 MiB are 1,024 tokens
        config = EngineConfig("none", max_batch_tokens=2000, max_sequences=4, block_size=4)
        core = Core(config, HashRunner(replace(about, blocks=1000)))
        core.add(Add.alike(1, tuple(range(prompt)), 2, 0, 4, Sampling(), frozenset()))
        while core.has_work:
            core.step()
        assert (core.stats().prefix_kv_bytes_read > 0) == shared
