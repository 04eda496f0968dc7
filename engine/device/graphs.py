"""Decoding steps recorded once and replayed: a step's launches cost the host one call instead of hundreds.

A recorded step reads its arrays from fixed places and always runs as many rows as its bucket has; what it is to do,
the arrays say. Recording itself is a function that is handed in, so that all else runs where there are no graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.device.buckets import bucket_for
from engine.device.frame import Frame

Step = Callable[[], torch.Tensor]
"""The launches of a step, and where they leave its result."""


class Recording(Protocol):
    """A step that can be run again, over what its inputs hold by then."""

    @property
    def output(self) -> torch.Tensor:
        """Where its result lies after `replay`, until any other is replayed."""
        ...

    def replay(self) -> None:
        """Run it, behind all that is queued."""
        ...


Record = Callable[[Step], Recording]


@dataclass(frozen=True, slots=True)
class Recorded:
    """The recorded step of a bucket, and the places of its arrays; a step's others lie behind them."""

    rows: int
    frame: Frame
    recording: Recording


class Graphs:
    """A model's recorded steps, by bucket."""

    def __init__(self, frames: Mapping[int, Frame], step: Callable[[Frame], Step], record: Record) -> None:
        """Record a step for each frame, by its rows: the largest first, whose memory the others then share."""
        self._sizes = sorted(frames)
        self._recorded = {
            rows: Recorded(rows, frames[rows], record(step(frames[rows]))) for rows in reversed(self._sizes)
        }

    def find(self, rows: int) -> Recorded | None:
        """The smallest recorded step that runs so many rows, if there is one."""
        size = bucket_for(rows, self._sizes)
        return None if size is None else self._recorded[size]


@dataclass(frozen=True, slots=True)
class _Graph:
    graph: torch.cuda.CUDAGraph
    output: torch.Tensor

    def replay(self) -> None:
        self.graph.replay()


def cuda_recorder() -> Record:
    """Records CUDA graphs, which share one pool of memory: never are two of them under way."""
    pool = torch.cuda.graph_pool_handle()
    # One stream for all: cuBLAS keeps a workspace (32 MB on a Hopper GPU) for every stream that it has seen.
    beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def record(step: Step) -> Recording:
        # Kernels are compiled and loaded, and that workspace is taken from outside of the pool.
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            step()
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        # Other threads of a program that holds an engine may ask the device for memory meanwhile.
        with torch.cuda.graph(graph, pool=pool, stream=beside, capture_error_mode="thread_local"):
            output = step()
        return _Graph(graph, output)

    return record
