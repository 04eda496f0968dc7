"""How CUDA graphs are recorded: over stand-ins for streams and graphs, which tell in what order they are used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
import torch

from engine.device.graphs import cuda_recorder

Told = list[tuple[str, ...]]


class _Stream:
    def __init__(self, told: Told, name: str) -> None:
        self._told = told
        self.name = name

    def wait_stream(self, other: _Stream) -> None:
        self._told.append((self.name, "waits for", other.name))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    told: Told = []
    numbers = count(1)
    stack = [_Stream(told, "main")]

    @contextmanager
    def entered(stream: _Stream) -> Iterator[None]:
        stack.append(stream)
        yield
        stack.pop()

    @contextmanager
    def recorded(_: Any, pool: str, stream: _Stream, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local"
        with entered(stream):
            told.append((stream.name, "records into", pool))
            yield

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: f"pool {next(numbers)}")
    monkeypatch.setattr(torch.cuda, "Stream", lambda: _Stream(told, f"stream {next(numbers)}"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stack[-1])
    monkeypatch.setattr(torch.cuda, "stream", entered)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph", recorded)
    return told


def test_every_step_is_tried_and_recorded_on_the_same_stream(told: Told) -> None:
    """cuBLAS takes a workspace for each stream, and takes it from a graph's memory if it first sees it there."""

    def step() -> torch.Tensor:
        told.append((torch.cuda.current_stream().name, "runs"))  # type: ignore[attr-defined]
        return torch.zeros(1)

    record = cuda_recorder()
    for _ in range(2):
        record(step)
    once = [
        ("stream 2", "waits for", "main"),
        ("stream 2", "runs"),
        ("main", "waits for", "stream 2"),
        ("stream 2", "records into", "pool 1"),
        ("stream 2", "runs"),
    ]
    assert told == once * 2
