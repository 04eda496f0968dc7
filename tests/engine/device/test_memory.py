"""How much a step may hold on a GPU, by what it is seen to take; torch's account of a GPU's memory is made up here."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from engine.config import EngineConfig
from engine.device import memory
from engine.device.memory import Room, find_room, room_beside

MIB = 1 << 20


class _Gpu:
    """24 GB, of which a model has 16 and a library takes more with the first step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reserved, self.peak, self.others = 16000 * MIB, 16500 * MIB, 400 * MIB
        for name, told in {
            "synchronize": lambda: None,
            "empty_cache": lambda: None,
            "memory_reserved": lambda: self.reserved,
            "max_memory_reserved": lambda: self.peak,
            "reset_peak_memory_stats": self.forget,
            "mem_get_info": lambda: (24000 * MIB - self.reserved - self.others, 24000 * MIB),
        }.items():
            monkeypatch.setattr(torch.cuda, name, told)

    def forget(self) -> None:
        self.peak = self.reserved


def test_a_step_is_seen_with_all_that_it_makes_others_take(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = _Gpu(monkeypatch)

    def step() -> int:
        gpu.peak += 2000 * MIB  # 700 of them its own keys and values
        gpu.reserved += 32 * MIB  # a workspace that stays
        gpu.others += 100 * MIB  # compiled kernels
        return 700 * MIB

    # Beside the model's 16000 and the others' 500 there will be the step's 1300, in which the workspace is counted.
    assert room_beside(step) == Room(1300 * MIB, (24000 - 16000 - 500 - 1300) * MIB)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens of the steps that are tried, each of which takes a byte a token; 2,000 are free."""
    seen: list[int] = []

    def room(step: Callable[[], int]) -> Room:
        taken = step()
        seen.append(taken)
        if taken > 2000:
            raise torch.OutOfMemoryError
        return Room(taken, 2000 - taken)

    monkeypatch.setattr(memory, "room_beside", room)
    return seen


def test_a_step_takes_no_more_than_it_leaves_to_keys_and_values(tried: list[int]) -> None:
    settings, left = find_room(EngineConfig("m", max_sequences=100), lambda one: one.batch_tokens("cuda"))
    assert tried == [8192, 4096, 2048, 1024, 512]
    assert (settings.max_batch_tokens, left) == (512, 1488)


def test_no_step_has_less_than_all_sequences_need(tried: list[int]) -> None:
    settings, left = find_room(EngineConfig("m", max_sequences=1800), lambda one: one.batch_tokens("cuda"))
    assert tried == [8192, 4096, 2048, 1816]
    assert (settings.max_batch_tokens, left) == (1816, 184)


def test_what_the_settings_say_is_tried_alone(tried: list[int]) -> None:
    settings = EngineConfig("m", max_batch_tokens=1900)
    assert find_room(settings, lambda one: one.batch_tokens("cuda")) == (settings, 100)
    with pytest.raises(torch.OutOfMemoryError):
        find_room(EngineConfig("m", max_batch_tokens=4000), lambda one: one.batch_tokens("cuda"))
    assert tried == [1900, 4000]
