"""What the process may use of its machine."""

from __future__ import annotations

import os

import pytest
import torch

from engine import resources


def test_the_cores_that_affinity_and_groups_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    monkeypatch.setattr(resources, "cpus", lambda: None)
    assert resources.usable_cores() == 3
    monkeypatch.setattr(resources, "cpus", lambda: 1.5)
    assert resources.usable_cores() == 2


def test_a_system_without_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(resources, "cpus", lambda: None)
    assert resources.usable_cores() == 8
