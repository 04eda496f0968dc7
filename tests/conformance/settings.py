"""The settings in which a row is tested, stated at each test.

    @settings(FANOUT, NATIVE, ONE)
    async def test_D9_...(scene): ...

A test that leaves one out states the reason, which docs/conformance.md repeats.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., Any])


@dataclass(frozen=True)
class Setting:
    """The server behind the gateway, and how many choices the client requests."""

    name: str
    n: int
    native: bool  # the upstream has `n`, and the configuration says so


FANOUT = Setting("fanout", 3, native=False)
NATIVE = Setting("native", 3, native=True)
ONE = Setting("one", 1, native=False)
EVERY = (FANOUT, NATIVE, ONE)
ENGINE = Setting("engine", 3, native=True)
"""The built-in engine instead of the scripted server. It has tests of its own, since its answers cannot be scripted."""


@dataclass(frozen=True)
class Applies:
    """Where a test runs: names of settings, and why not in the others."""

    names: tuple[str, ...]
    why: str


def settings(*which: Setting, why: str = "") -> Callable[[Test], Test]:
    """Run a test in these settings; in none if the row is not about choices. why: required if some are left out."""
    if set(which) != set(EVERY) and not why:
        raise ValueError("a setting is left out, and nobody knows why")

    def decorate(test: Test) -> Test:
        test.__dict__["applies"] = Applies(tuple(setting.name for setting in which), why)
        if not which:
            return test
        marked: Test = pytest.mark.parametrize("setting", which, ids=lambda setting: setting.name)(test)
        return marked

    return decorate


def of_engine(test: Test) -> Test:
    """Run a test with the engine behind the gateway."""
    test.__dict__["applies"] = Applies((ENGINE.name,), "")
    return test


everywhere = settings(*EVERY)
of_several = settings(FANOUT, NATIVE, why="it is about several choices")
of_legs = settings(FANOUT, why="it is about several calls")
of_native = settings(NATIVE, why="it is about one call for several choices")
of_one = settings(ONE, why="it is about one choice")
of_http = settings(why="it is decided before there are choices")
