"""The engine over the device's backend gives what it gives over torch's, with all of Triton's kernels (interpreted)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.cpu_runner import CpuRunner
from engine.device.memory import largest_batch
from engine.device.runner import DeviceRunner
from engine.device.sampler import DeviceSampler
from engine.errors import ConfigError, ModelError
from engine.kernels import launch
from engine.kernels.add_product import add_product
from engine.loading import load_runner
from engine.messages import Add, Embed, Sampling
from engine.models.llama import Decoder
from tests.engine.device.running import Recorder, adapter, config, device_runner, group, run, same, write


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("qwen3"), "qwen3")


TRAFFIC = [
    replace(group(1, 30, 4, 4, 100), logprobs=3),
    group(2, 9, 1, 5, 200, Sampling(temperature=0.7, top_p=0.9, repetition_penalty=1.3, logit_bias=((7, 2.0),))),
]


def test_tokens_and_log_probabilities(llama: Path) -> None:
    """A prompt in two chunks, n = 4 forks and n = 1 beside them, seeds, cuts, edits."""
    settings = config(llama)
    mine, stats = run(device_runner(settings), settings, TRAFFIC)
    theirs, _ = run(CpuRunner.load(settings), settings, TRAFFIC)
    same(mine, theirs)
    assert stats.forks == 3
    assert stats.prefix_kv_bytes_read > 0


def test_overlapping_steps_replayed(qwen3: Path) -> None:
    """Norms per head; tokens taken from the device where the host does not know them; decoding steps recorded."""
    settings, recorder = config(qwen3), Recorder()
    mine, _ = run(device_runner(settings, overlaps=True, record=recorder), settings, TRAFFIC)
    theirs, _ = run(CpuRunner.load(settings), settings, TRAFFIC)
    same(mine, theirs)
    assert [len(one.output) for one in recorder.recordings] == [8, 8, 4, 4, 2, 2, 1, 1]  # each step, and its draws
    assert sum([one.replays for one in recorder.recordings]) >= 3


@pytest.mark.parametrize(("model", "most", "recorded"), [("llama", 2, False), ("qwen3", 32, True)])
def test_products_that_are_added_to_the_residual_stream(
    model: str, most: int, recorded: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps without chunks only, and of few rows only."""
    taken: list[int] = []

    def add(x: torch.Tensor, *given: Any) -> torch.Tensor:
        taken.append(len(x))
        return add_product(x, *given)

    monkeypatch.setattr("engine.device.ops.add_product", add)
    monkeypatch.setattr(launch, "FEW_ROWS", most)
    monkeypatch.setattr(launch, "row_tile", lambda rows: 32)
    settings = config(request.getfixturevalue(model))
    theirs, _ = run(CpuRunner.load(settings), settings, TRAFFIC)
    mine, _ = run(device_runner(settings, record=Recorder() if recorded else None, adds=True), settings, TRAFFIC)
    same(mine, theirs)
    assert taken
    assert max(taken) <= most


def test_deterministic_mode_adds_no_products_of_few_rows(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.device.ops.add_product", None)
    settings = config(llama, deterministic=True)
    run(device_runner(settings, adds=True), settings, [group(2, 9, 1, 3, 200)])


def test_preemption_and_the_prefix_cache(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few blocks: choices give way and are computed again, and what is known of their prompts is not.

    Recorded steps have room for few partial results here, so that some are not replayed.
    """
    monkeypatch.setattr("engine.device.runner.capacity", lambda *_: 4)
    settings = config(llama, num_blocks=8)
    adds = [group(1, 14, 3, 5, 100), group(2, 14, 1, 4, 300)]
    recorder = Recorder()
    mine, stats = run(device_runner(settings, overlaps=True, record=recorder), settings, adds)
    theirs, others = run(CpuRunner.load(settings), settings, adds)
    same(mine, theirs)
    assert stats.preemptions == others.preemptions > 0
    assert stats.prefix_cache_hits > 0
    assert stats.block_copies > 0
    eight, four, two, one = [one.replays for one in recorder.recordings[::2]]
    assert eight == four == 0 < two + one


def test_what_prompts_tell(llama: Path) -> None:
    """Their log probabilities, and hidden states of both poolings."""
    settings = config(llama, kernels="triton")
    prompt = group(0, 30, 1, 1, 0).prompt
    scored = replace(group(1, 30, 1, 1, 0), prompt_logprobs=2)
    adds: list[Add | Embed] = [scored, Embed(2, prompt[:11], "mean"), Embed(3, prompt[:7], "last")]
    runner = load_runner(settings)
    assert isinstance(runner, DeviceRunner)
    mine, _ = run(runner, settings, adds)
    theirs, _ = run(CpuRunner.load(settings), settings, adds)
    assert len(theirs.prompts[1]) == 29
    same(mine, theirs)


def test_adapters(llama: Path, tmp_path: Path) -> None:
    """Rows of an adapter beside those of the bare model, in steps that are not replayed."""
    tuned = adapter(tmp_path / "tuned")
    settings, recorder = config(llama, adapters=(("tuned", str(tuned)),)), Recorder()
    adds = [replace(group(1, 9, 2, 3, 1), adapter="tuned"), group(2, 9, 1, 3, 1)]
    mine, _ = run(device_runner(settings, record=recorder), settings, adds)
    theirs, _ = run(CpuRunner.load(settings), settings, adds)
    same(mine, theirs)
    assert mine.tokens[1, 0] != mine.tokens[2, 0]
    assert not any(one.replays for one in recorder.recordings)


def test_recorded_draws_have_a_place_for_each_of_their_rows(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In deterministic mode these are a power of two, more than the sequences that there may be."""
    seen: list[tuple[int, int]] = []

    def draw(self: DeviceSampler, logits: torch.Tensor, lines: torch.Tensor, drawn: torch.Tensor, last: Any) -> None:
        seen.append((len(lines), len(last)))

    monkeypatch.setattr(DeviceSampler, "draw", draw)
    device_runner(config(llama, deterministic=True, max_sequences=5), record=Recorder())
    device_runner(config(llama, max_sequences=5), record=Recorder())
    assert [lines for lines, _ in seen] == [8, 5, 4, 2, 1]
    assert all(last >= lines for lines, last in seen)


def test_a_model_of_transformers_with_windows_and_sinks(tmp_path: Path) -> None:
    write(tmp_path, "gpt_oss", sliding_window=8, num_local_experts=4, num_experts_per_tok=2)
    settings = config(tmp_path)
    adds = [group(1, 21, 2, 3, 1)]
    mine, _ = run(device_runner(settings), settings, adds)
    theirs, _ = run(CpuRunner.load(settings), settings, adds)
    same(mine, theirs)


def test_the_step_that_memory_is_measured_by_runs(llama: Path) -> None:
    settings = config(llama, num_blocks=8 + 24 // 4)
    output = device_runner(settings).submit(largest_batch(settings, context=256)).result()
    assert len(output.tokens) == len(output.logprobs) == 8


def test_heads_that_no_kernel_takes_are_refused_as_the_model_is_loaded(tmp_path: Path) -> None:
    write(tmp_path, head_dim=288)
    with pytest.raises(ModelError, match="heads of 288 numbers"):
        load_runner(config(tmp_path, kernels="triton"))


def test_a_device_that_is_too_small_is_told_in_words(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load_model(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate ...")

    monkeypatch.setattr("engine.device.runner.load_model", load_model)
    with pytest.raises(ConfigError, match="is too small for the model, the KV cache and a step of 32 tokens"):
        load_runner(config(llama, kernels="triton"))


def test_a_device_whose_multiprocessors_are_too_small_is_told_in_words(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_model(*_: object) -> None:
        raise launch.TooLarge(115_200, 101_376, "shared memory")

    monkeypatch.setattr("engine.device.runner.load_model", load_model)
    with pytest.raises(ConfigError, match=r"\(shared memory: it needs 115200 of 101376\): set device to cpu"):
        load_runner(config(llama, kernels="triton"))


def test_deterministic_mode_is_exact_in_any_company(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens and log probabilities, to the bit; each chunk a pass of its own, and all rows at a time, filled up."""
    passes: list[int] = []
    run_pass = Decoder.run

    def counted(model: Decoder, tokens: torch.Tensor, *rest: Any) -> torch.Tensor:
        passes.append(len(tokens))
        return run_pass(model, tokens, *rest)

    monkeypatch.setattr(Decoder, "run", counted)
    settings = config(llama, deterministic=True, max_batch_tokens=40)
    one = replace(group(1, 30, 3, 4, 100), logprobs=3)
    single = replace(one, choices=one.choices[2:])
    runner = device_runner(settings, record=Recorder())
    beside, _ = run(runner, settings, [one, group(2, 17, 2, 4, 9)], every=1)
    alone, _ = run(runner, settings, [single])
    assert set(passes) == {30, 17, 8}
    assert beside.tokens[1, 2] == alone.tokens[1, 0]
    assert beside.logprobs[1, 2] == alone.logprobs[1, 0]
