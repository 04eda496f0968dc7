"""The lifeline of a call: lets it be given up from outside while it waits for its upstream."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


class GivenUpError(Exception):
    """The call was given up."""


class Lifeline:
    """Belongs to one call and to the task that reads it. spoken: something of its answer has come."""

    __slots__ = ("_cut", "_task", "_waits", "spoken")

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._waits = False
        self._cut = False
        self.spoken = False

    def cut(self) -> None:
        """Give the call up. What waits for it raises GivenUpError at once; what reads it later, then."""
        if not self._cut:
            self._cut = True
            if self._waits and self._task is not None:
                self._task.cancel()

    async def wait(self, coming: Awaitable[T]) -> T:
        """Wait for what the upstream says next. Raises GivenUpError; others may cancel the task all the same."""
        self._waits = True
        try:
            if self._is_cut():
                raise GivenUpError
            return await coming
        except asyncio.CancelledError:
            # Counted by the task as in asyncio.timeout: whoever else cancelled it has the last word.
            if self._is_cut() and self._task is not None and self._task.uncancel() == 0:
                raise GivenUpError from None
            raise
        finally:
            self._waits = False

    def _is_cut(self) -> bool:
        return self._cut  # read anew, as others change it
