"""A step's arrays arrive as they were sent, whatever was sent before, at the places that recorded steps know."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.device.frame import Arrays, Frame
from engine.device.transfer import Buffers, Fetched

CPU = torch.device("cpu")


def arrays(size: int, first: int = 0) -> Arrays:
    return {
        "bits": np.arange(first, first + size, dtype=np.uint8),
        "ids": np.arange(first, first + size, dtype=np.int64),
        "pairs": np.arange(first, first + 2 * size, dtype=np.int32).reshape(size, 2),
        "weights": np.arange(size, dtype=np.float32) / 4,
    }


def test_every_array_arrives_in_its_type_at_a_multiple_of_16_bytes() -> None:
    sent = arrays(5)
    frame = Frame.of(sent)
    assert all(field.begin % 16 == 0 for field in frame.fields.values())
    there = Buffers(frame.size, CPU).send(frame, sent)
    assert {name: tensor.tolist() for name, tensor in there.items()} == {k: v.tolist() for k, v in sent.items()}
    assert there["pairs"].dtype == torch.int32


def test_shorter_arrays_and_others_behind_them() -> None:
    fixed = Frame.of(arrays(6))
    buffers = Buffers(fixed.size + 64, CPU)
    places = buffers.send(fixed, fixed.zeros())
    sent = arrays(4, first=9) | {"more": np.array([3], dtype=np.int32)}
    frame = Frame.of(sent, fixed)
    assert fixed.takes(sent)
    there = buffers.send(frame, sent)
    assert there["more"].tolist() == [3]
    assert places["ids"].tolist() == [9, 10, 11, 12, 0, 0]
    assert places["pairs"].data_ptr() == there["pairs"].data_ptr()


def test_what_is_too_long_or_of_another_type_does_not_fit() -> None:
    fixed = Frame.of(arrays(4))
    assert not fixed.takes(arrays(5))
    assert not fixed.takes(arrays(4) | {"ids": np.zeros(4, dtype=np.int32)})
    assert not fixed.takes(arrays(4) | {"pairs": np.zeros((4, 3), dtype=np.int32)})


def test_a_frame_beyond_the_place_gets_memory_of_its_own() -> None:
    small, large = Frame.of(arrays(2)), Frame.of(arrays(99))
    buffers = Buffers(small.size, CPU)
    kept = buffers.send(small, arrays(2))
    assert not buffers.fits(large)
    for first in range(3):  # both of the host's buffers grow
        assert buffers.send(large, arrays(99, first))["ids"].tolist() == list(range(first, first + 99))
    assert kept["ids"].tolist() == [0, 1]


class _Read:
    """A mark in a queue that has got nowhere since it was put there."""

    def __init__(self) -> None:
        self.passed = True

    def record(self) -> None:
        self.passed = False

    def query(self) -> bool:
        return self.passed

    def synchronize(self) -> None:
        raise AssertionError("nobody waits for the device to send something")


def test_nobody_waits_to_send(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many buffers as are on their way: what the device has yet to read is not written to."""
    marks: list[_Read] = []

    def mark(_: torch.device) -> _Read:
        marks.append(_Read())
        return marks[-1]

    monkeypatch.setattr("engine.device.transfer.mark", mark)
    buffers, frame = Buffers(Frame.of(arrays(9)).size, CPU), Frame.of(arrays(2))
    for _ in range(5):
        buffers.send(frame, arrays(2))
    assert [one.passed for one in marks] == [False] * 5
    marks[1].passed = marks[3].passed = True
    for _ in range(2):
        buffers.send(frame, arrays(2))
    assert [one.passed for one in marks] == [False] * 5  # taken again
    for one in marks:
        one.passed = True
    for _ in range(3):
        buffers.send(Frame.of(arrays(99)), arrays(99))
    assert len(marks) == 8
    assert len(buffers._sides) == 3  # those that were too small are gone


def test_what_is_fetched_is_what_it_was_when_it_was_asked_for() -> None:
    there = torch.arange(3)
    fetched = Fetched(there)
    there += 1
    assert fetched.tensor().tolist() == [0, 1, 2]
