"""Permits, counted in choices: what bounds the work that all clients together can start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nproxy.openai.errors import overloaded

RETRY_AFTER_SECONDS = 1


class Permits:
    """At most `limit` choices in flight. A request takes all of its choices together or none."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0

    @contextmanager
    def take(self, choices: int) -> Iterator[None]:
        """Hold permits for so many choices while the block runs. Raises ApiError 429 when they are not free."""
        if self.taken + choices > self.limit:
            raise overloaded("Too many choices are in flight; try again soon.", retry_after=RETRY_AFTER_SECONDS)
        self.taken += choices
        try:
            yield
        finally:
            self.taken -= choices
