"""Clocks: one with times from the GPU, and one with made-up times for runs without a GPU."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Protocol

import torch

from bench.gpu.table import Result

Call = Callable[[], object]

_FLUSH = 256 << 20  # bytes written between two repetitions: several times any L2
_WARM = 3


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one call: the median and the quartiles over the repetitions. graphed: whether a graph was replayed."""

    seconds: float
    low: float
    high: float
    repeats: int
    graphed: bool


class Clock(Protocol):
    """It times calls, and knows the device and the number type that they compute with."""

    device: torch.device
    dtype: torch.dtype
    dry: bool

    def time(self, calls: Sequence[Call], repeats: int = 20, *, graph: bool = True) -> Timing:
        """Time calls that do the same with different inputs, in turns, each with a cold L2.

        graph: record each call in a CUDA graph and replay that, so that gaps between launches are not timed. A call
        that cannot be recorded is called directly.
        """
        ...

    def record(self, call: Call) -> Call:
        """Return the call as a replay of a recorded graph, if the device has graphs; makes the call at least once."""
        ...

    def now(self) -> float:
        """Return the host's seconds since an arbitrary moment."""
        ...

    def wait(self) -> None:
        """Wait until the device has finished all queued work."""
        ...


class CudaClock:
    """It times calls with CUDA events."""

    dry = False

    def __init__(self, device: str = "cuda") -> None:
        self.device = torch.device(device)
        self.dtype = torch.bfloat16
        self._flush = torch.empty(_FLUSH, dtype=torch.uint8, device=self.device)

    def time(self, calls: Sequence[Call], repeats: int = 20, *, graph: bool = True) -> Timing:
        """As Clock.time."""
        for _ in range(2):  # the first call compiles, and may autotune
            for call in calls:
                call()
        torch.cuda.synchronize()
        replays = self._recorded(calls) if graph else None
        run = calls if replays is None else replays
        total = repeats + _WARM
        begin, end = [_event() for _ in range(total)], [_event() for _ in range(total)]
        for i in range(total):
            for _ in range(4 if replays is None else 1):  # without a graph the host needs a longer lead
                self._flush.fill_(i % 251)
            begin[i].record()
            run[i % len(run)]()
            end[i].record()
        torch.cuda.synchronize()
        taken = [first.elapsed_time(last) / 1e3 for first, last in zip(begin[_WARM:], end[_WARM:], strict=True)]
        low, middle, high = statistics.quantiles(taken, n=4) if len(taken) > 1 else taken * 3
        return Timing(middle, low, high, repeats, replays is not None)

    def _recorded(self, calls: Sequence[Call]) -> list[Call] | None:
        try:
            return [self.record(call) for call in calls]
        except RuntimeError:
            torch.cuda.synchronize()
            return None

    def record(self, call: Call) -> Call:
        """As Clock.record; raises torch's error if the call cannot be recorded."""
        call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        return graph.replay

    def now(self) -> float:
        """As Clock.now."""
        return time.perf_counter()

    def wait(self) -> None:
        """As Clock.wait."""
        torch.cuda.synchronize()


class DryClock:
    """It runs everything and times nothing: every call takes a millisecond, and so does every reading of the clock."""

    dry = True

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.dtype = torch.float32  # Triton's interpreter computes bfloat16 wrongly
        self._ticks = count(1)

    def time(self, calls: Sequence[Call], repeats: int = 20, *, graph: bool = True) -> Timing:
        """As Clock.time; each call is made once."""
        for call in calls:
            call()
        return Timing(1e-3, 1e-3, 1e-3, repeats, graph)

    def record(self, call: Call) -> Call:
        """As Clock.record."""
        call()
        return call

    def now(self) -> float:
        """As Clock.now."""
        return next(self._ticks) * 1e-3

    def wait(self) -> None:
        """As Clock.wait."""


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def ceilings(clock: Clock) -> Iterator[Result]:
    """Yield the device's copy bandwidth and matmul rate, to which every other figure should be compared."""
    found = {} if clock.dry else {"device": str(torch.cuda.get_device_properties(clock.device))}
    yield Result("hw.copy", _copy_bandwidth(clock) / 1e12, detail=found)
    yield Result("hw.matmul", _matmul_rate(clock) / 1e12)


def _copy_bandwidth(clock: Clock) -> float:
    """Return the bytes per second of a large copy on the device, reads and writes counted."""
    size = 1 << 16 if clock.dry else 1 << 32
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=clock.device)
    target = torch.empty_like(source)
    # Not as a graph: its copies are made by another engine than a kernel's, and reach less.
    return 2 * size / clock.time([lambda: target.copy_(source)], graph=False).seconds


def _matmul_rate(clock: Clock) -> float:
    """Return the floating-point operations per second of a large product of random numbers."""
    size = 32 if clock.dry else 8192
    a, b = (torch.randn(size, size, dtype=clock.dtype, device=clock.device) for _ in range(2))
    out = torch.empty_like(a)
    return 2.0 * size**3 / clock.time([lambda: torch.mm(a, b, out=out)]).seconds
