"""Time limits for a good request; the rate of good requests is the goodput (DistServe, OSDI 2024)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import click

NAMES: Mapping[str, str] = {"ttft": "time_to_first_token", "tpot": "time_per_output_token", "e2el": "request"}
"""What can be limited, by the names of `vllm bench serve`, and the measure that each name stands for."""


class Bound(NamedTuple):
    """A time limit. name: one of NAMES. seconds: the maximum."""

    name: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.name}:{1000 * self.seconds:g}"


def bounds_of(context: click.Context, option: click.Parameter, typed: tuple[str, ...]) -> tuple[Bound, ...]:
    """Parse each NAME:MS, such as `ttft:500`; anything else is wrong use."""
    return tuple(map(_bound, typed))


def _bound(typed: str) -> Bound:
    name, _, number = typed.partition(":")
    try:
        milliseconds = float(number)
    except ValueError:
        milliseconds = 0.0
    if name not in NAMES or not 0 < milliseconds < float("inf"):
        names = ", ".join(NAMES)
        raise click.BadParameter(
            f"{typed} must be one of {names}, a colon and a number of milliseconds, as in ttft:500."
        )
    return Bound(name, milliseconds / 1000)
