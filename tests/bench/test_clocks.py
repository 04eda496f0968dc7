"""The clock of a GPU over stand-ins for its events and graphs: what is timed, in which order, and what is not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from bench.gpu import clocks
from bench.gpu.clocks import CudaClock, DryClock


class _Gpu:
    """Notes what is queued; a recorded call takes a millisecond more each time, and the first ones a second."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.recording: list[str] | None = None
        self.graphs: dict[int, list[str]] = {}
        self.runs = 0
        self.refuses = False

    def call(self, name: str) -> None:
        """A launch."""
        if self.recording is not None:
            if self.refuses:
                raise RuntimeError("operation not permitted when stream is capturing")
            self.recording.append(name)
        else:
            self.log.append(name)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> _Gpu:
    gpu = _Gpu()

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing
            self.at = 0.0

        def record(self) -> None:
            gpu.log.append("event")
            gpu.runs += 1
            self.at = gpu.runs * (gpu.runs + 1) / 2  # ms: the n-th pair is 2n apart

        def elapsed_time(self, other: Event) -> float:
            return other.at - self.at

    class CUDAGraph:
        def replay(self) -> None:
            gpu.log += [f"{name} replayed" for name in gpu.graphs[id(self)]]

    @contextmanager
    def graph(recorded: CUDAGraph) -> Iterator[None]:
        gpu.recording = gpu.graphs[id(recorded)] = []
        try:
            yield
        finally:
            gpu.recording = None

    for name, stand_in in {"Event": Event, "CUDAGraph": CUDAGraph, "graph": graph, "synchronize": lambda: None}.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(clocks, "_FLUSH", 64)
    return gpu


def test_recorded_calls_in_turns_each_alone_between_two_events(gpu: _Gpu) -> None:
    timing = CudaClock("cpu").time([lambda: gpu.call("a"), lambda: gpu.call("b")], repeats=5)
    assert timing.graphed
    assert timing.repeats == 5
    timed = gpu.log[gpu.log.index("event") :]
    assert timed == [step for i in range(8) for step in ("event", f"{'ab'[i % 2]} replayed", "event")]
    # Pairs are 2, 4, .. 16 ms apart; the first three warm up.
    assert timing.seconds == pytest.approx(12e-3)
    assert timing.low < timing.seconds < timing.high


def test_what_cannot_be_recorded_is_called(gpu: _Gpu) -> None:
    gpu.refuses = True
    timing = CudaClock("cpu").time([lambda: gpu.call("a")], repeats=2)
    assert not timing.graphed
    timed = gpu.log[gpu.log.index("event") :]
    assert timed == ["event", "a", "event"] * 5


def test_each_repetition_begins_with_another_cache(gpu: _Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = CudaClock("cpu")
    seen: list[int] = []
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda _: seen.append(int(clock._flush[0])))
    clock.time([lambda: gpu.call("a")], repeats=3)
    assert seen == [0, 1, 2, 3, 4, 5]


def test_a_clock_that_tells_no_time() -> None:
    clock = DryClock()
    calls: list[int] = []
    assert clock.time([lambda: calls.append(1), lambda: calls.append(2)]).seconds == 1e-3
    assert calls == [1, 2]
    assert clock.now() < clock.now()
