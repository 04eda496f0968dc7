"""The lifeline of a call: lets it be given up from outside while it waits for its upstream."""

from __future__ import annotations

import asyncio
from types import TracebackType


class GivenUpError(Exception):
    """The call was given up."""


class Lifeline:
    """Belongs to one call and to the task that makes it. spoken: something of its answer has come.

    A block `with line:` waits for what the upstream says next; it raises GivenUpError where the call is given up
    meanwhile, or was before.
    """

    __slots__ = ("_cut", "_task", "_waits", "spoken")

    def __init__(self) -> None:
        self._task = asyncio.current_task()
        self._waits = False
        self._cut = False
        self.spoken = False

    def cut(self) -> None:
        """Give the call up: at once where something waits for it, else when that is tried next."""
        if not self._cut:
            self._cut = True
            if self._waits and self._task is not None:
                self._task.cancel()

    def __enter__(self) -> None:
        if self._cut:
            raise GivenUpError
        self._waits = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._waits = False
        # Counted by the task as in asyncio.timeout: whoever else cancelled it has the last word.
        if self._cut and kind is asyncio.CancelledError and self._task is not None and self._task.uncancel() == 0:
            raise GivenUpError from None
