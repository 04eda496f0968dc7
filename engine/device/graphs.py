"""Decoding steps recorded once and replayed: a step's launches cost the host one call instead of hundreds.

A recorded step reads its arrays from fixed places and always runs as many rows as its bucket has; the arrays say what
it does. A second recording draws a token for each row by its scores alone, which is all that most steps do. Recording
itself is a function that is passed in, so that everything else also runs without CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.device.buckets import bucket_for
from engine.device.frame import Frame

Step = Callable[[], torch.Tensor]
"""The launches of a step; it returns where they leave its result."""


class Recording(Protocol):
    """A step that can be run again, with what its inputs hold then."""

    @property
    def output(self) -> torch.Tensor:
        """Where its result is after `replay`, until any other recording is replayed."""
        ...

    def replay(self) -> None:
        """Run it, after everything that is queued."""
        ...


Record = Callable[[Step], Recording]


@dataclass(frozen=True, slots=True)
class Recorded:
    """The recorded step of a bucket, and the places of its arrays; a step's other arrays come behind them."""

    rows: int
    frame: Frame
    recording: Recording
    drawing: Recording
    """What follows it if every row draws and no draw edits or cuts its scores, or asks for log probabilities."""


class Graphs:
    """A model's recorded steps, by bucket."""

    def __init__(
        self,
        frames: Mapping[int, Frame],
        step: Callable[[Frame], Step],
        draw: Callable[[Frame, torch.Tensor], Step],
        record: Record,
    ) -> None:
        """Record a step for each frame, by its rows, and the draws from its result: the largest first, because the
        others then share its memory.
        """
        self._sizes = sorted(frames)
        self._recorded: dict[int, Recorded] = {}
        for rows in reversed(self._sizes):
            frame = frames[rows]
            recording = record(step(frame))
            self._recorded[rows] = Recorded(rows, frame, recording, record(draw(frame, recording.output)))

    def find(self, rows: int) -> Recorded | None:
        """Return the smallest recorded step that runs so many rows; None if there is none."""
        size = bucket_for(rows, self._sizes)
        return None if size is None else self._recorded[size]


@dataclass(frozen=True, slots=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    output: torch.Tensor

    def replay(self) -> None:
        self.graph.replay()


def cuda_recorder() -> Record:
    """Return a function that records CUDA graphs, which share one memory pool: two of them are never in
    flight at once.
    """
    pool = torch.cuda.graph_pool_handle()
    # One stream for all: cuBLAS keeps a workspace (32 MB on a Hopper GPU) for every stream that it has been used on.
    beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def record(step: Step) -> Recording:
        # A run before recording compiles and loads the kernels, and allocates that workspace outside of the pool.
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            step()
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        # In a program that embeds the engine, other threads may allocate device memory meanwhile.
        with torch.cuda.graph(graph, pool=pool, stream=beside, capture_error_mode="thread_local"):
            output = step()
        return _Graph(graph, output)

    return record
