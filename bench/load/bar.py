"""A bar: a run on a stand, in a long form whose figures count and a short one that shows that it works."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from bench.load.stand import Stand


@dataclass(slots=True)
class Result:
    """What a bar found.

    line: the important figures, for the page. figures: all that was measured, as JSON. holds: checks that must hold on
    any machine, however busy. long: checks that only the long form on a quiet machine can decide.
    """

    line: str
    figures: dict[str, Any]
    holds: dict[str, bool]
    long: dict[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of docs/load.md. says: what must hold, in one line. run: called with `long` or `short` as keywords."""

    says: str
    run: Callable[..., Awaitable[Result]]
    long: dict[str, float]
    short: dict[str, float]

    async def on(self, stand: Stand, options: dict[str, float]) -> Result:
        """Run it."""
        return await self.run(stand, **options)
