"""Drawn requests, some; `make fuzz` plays as many as you like."""

from __future__ import annotations

from random import Random

from tests.openai.drawn_requests import play


def test_drawn_requests_are_requests_or_refused() -> None:
    for seed in range(1500):
        play(Random(seed))
