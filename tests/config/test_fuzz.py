"""Drawn settings, a few; `make fuzz` plays as many as you like."""

from __future__ import annotations

from pathlib import Path
from random import Random

import yaml

from nproxy.config import Source
from tests.config.drawn_settings import CANARY, GOOD, play


def test_drawn_settings_are_settings_or_problems(tmp_path: Path) -> None:
    for seed in range(80):
        play(Random(seed), tmp_path)


def test_what_they_are_drawn_from_is_good(tmp_path: Path) -> None:
    file = tmp_path / "nproxy.yaml"
    file.write_text(yaml.safe_dump(GOOD))
    assert Source(file, {"TOKEN": CANARY}).read().problems == ()
