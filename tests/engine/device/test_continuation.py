"""Steps that continue the one before: their arrays are those that planning anew would make, and so are their tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.batch import Batch
from engine.cpu_runner import CpuRunner
from engine.device.continuation import LINES, Continuation
from engine.device.frame import Arrays
from engine.device.runner import DevicePending, DeviceRunner
from engine.messages import Add, Choice, Sampling
from engine.passes import passes
from tests.engine.device.running import Recorder, config, device_runner, group, run, same, write


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def went_on(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of every step that continued the one before; its arrays have been compared with those of a new plan."""
    rows: list[int] = []
    runner: list[DeviceRunner] = []
    submit, follow = DeviceRunner._submit, Continuation.follow

    def submitted(self: DeviceRunner, batch: Batch) -> DevicePending:
        runner[:] = [self]
        return submit(self, batch)

    def followed(self: Continuation, batch: Batch) -> bool:
        done = follow(self, batch)
        if done:
            rows.append(len(batch.rows))
            _compare(self, batch, _planned(runner[0], batch))
        return done

    monkeypatch.setattr("engine.device.runner.capacity", lambda *_: 64)  # a tiny model's context gives too few places
    monkeypatch.setattr(DeviceRunner, "_submit", submitted)
    monkeypatch.setattr(Continuation, "follow", followed)
    return rows


def _planned(runner: DeviceRunner, batch: Batch) -> Arrays:
    part = runner._part(next(iter(passes(batch, runner._rows_per_pass))))
    plan = runner._sampler.plan(range(len(batch.rows)), batch.draws, {})
    assert plan.plain
    return runner._arrays(part, ()) | {LINES: plan.lines(part.rows)}


def _compare(going: Continuation, batch: Batch, planned: Arrays) -> None:
    there = going.recorded.frame.arrays(going.image)
    assert set(planned) == set(there)
    for name, array in planned.items():
        mine = there[name][: len(array)]
        if name.startswith("items"):  # the longest first: which is that may have changed since the step was planned
            mine, array = (np.array(sorted(map(tuple, one.tolist()))) for one in (mine, array))
        assert np.array_equal(mine, array), name
    assert [draw.sequence for draw in going.plan.draws] == [row.sequence for row in batch.rows]


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_step_continues_the_one_before(llama: Path, went_on: list[int], deterministic: bool) -> None:
    settings = config(llama, deterministic=deterministic, block_size=8, max_sequences=4)
    adds = [replace(group(1, 17, 3, 12, 100), stop_tokens=frozenset())]
    mine, _ = run(device_runner(settings, overlaps=True, record=Recorder()), settings, adds)
    theirs, _ = run(CpuRunner.load(replace(settings, deterministic=False)), settings, adds)
    same(mine, theirs)
    # Positions 17 to 27 are run, and 24 begins a block. 17 is planned, as it follows the prompt.
    assert went_on == [3] * 10


def test_a_span_that_begins_is_planned(llama: Path, went_on: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("continuation", "attention"):
        monkeypatch.setattr(f"engine.device.{module}.FIXED_SPAN", 16)
    settings = config(llama, block_size=4, max_sequences=2)
    adds = [replace(group(1, 26, 2, 12, 100), stop_tokens=frozenset())]
    mine, _ = run(device_runner(settings, overlaps=True, record=Recorder()), settings, adds)
    theirs, _ = run(CpuRunner.load(settings), settings, adds)
    same(mine, theirs)
    # Of positions 26 to 36, 26 follows the prompt and 32 begins a span.
    assert went_on == [2] * 9


def test_groups_that_begin_blocks_at_different_steps(llama: Path, went_on: list[int]) -> None:
    settings = config(llama, block_size=8, max_sequences=4)
    adds = [group(1, 17, 2, 12, 100), group(2, 12, 1, 12, 200), group(3, 12, 1, 3, 300)]
    mine, _ = run(device_runner(settings, overlaps=True, record=Recorder()), settings, adds)
    theirs, _ = run(CpuRunner.load(settings), settings, adds)
    same(mine, theirs)
    assert {3, 4} <= set(went_on)


@pytest.mark.parametrize(
    ("sampling", "logprobs"),
    [
        (Sampling(top_k=5), None),
        (Sampling(logit_bias=((7, 2.0),)), None),
        (Sampling(presence_penalty=0.5), None),
        (Sampling(min_tokens=30), None),
        (Sampling(), 2),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_draw_that_looks_at_more_than_its_scores_is_planned(
    llama: Path, went_on: list[int], sampling: Sampling, logprobs: int | None
) -> None:
    settings = config(llama, block_size=8, max_sequences=4)
    adds = [replace(group(1, 9, 2, 4, 100, sampling), logprobs=logprobs)]
    mine, _ = run(device_runner(settings, overlaps=True, record=Recorder()), settings, adds)
    theirs, _ = run(CpuRunner.load(settings), settings, adds)
    same(mine, theirs)
    assert went_on == []


def test_minimum_lengths_end_between_two_steps(llama: Path, went_on: list[int]) -> None:
    """The first draws exclude the stop token, the later ones are by scores alone; greedy and sampled side by side."""
    settings = config(llama, block_size=8, max_sequences=4)
    one = group(1, 17, 2, 12, 100)
    choices = (
        Choice(1, 12, Sampling(min_tokens=3, temperature=0.0)),
        Choice(2, 12, Sampling(temperature=0.7)),
    )
    adds: list[Add] = [replace(one, choices=choices)]
    mine, _ = run(device_runner(settings, overlaps=True, record=Recorder()), settings, adds)
    theirs, _ = run(CpuRunner.load(settings), settings, adds)
    same(mine, theirs)
    assert went_on


def test_without_recorded_steps_nothing_is_continued(llama: Path, went_on: list[int]) -> None:
    settings = config(llama)
    run(device_runner(settings, overlaps=True), settings, [group(1, 9, 2, 6, 1)])
    assert went_on == []
