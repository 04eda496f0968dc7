"""The cancel handle of a call: with it, the call can be given up from outside while it waits for its upstream."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self


class GivenUpError(Exception):
    """The call was given up through its cancel handle."""


class CancelHandle:
    """Belongs to one call, and to the task that makes it.

    The call is made in a block `with handle:`. The block raises GivenUpError if the call is given up before its answer
    is `whole`.

    all: the set that holds the handle while the block runs. model: what the call asks for. once: a server that may
    still be at work on it must not be followed by another. spoken: part of the answer has come. whole: all of it has,
    so that nothing is left to give up.
    """

    __slots__ = ("_all", "_cut", "_task", "model", "once", "spoken", "whole")

    def __init__(self, all: set[CancelHandle], model: str | None = None, once: bool = False) -> None:
        self._all = all
        self.model = model
        self.once = once
        self._task = asyncio.current_task()
        self._cut = False
        self.spoken = False
        self.whole = False

    def cut(self) -> None:
        """Give up the call; nothing happens if its answer is whole."""
        if not self._cut and not self.whole and self._task is not None:
            self._cut = True
            self._task.cancel()

    def __enter__(self) -> Self:
        self._all.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._all.discard(self)
        task, self._task = self._task, None  # there is nothing left to give up
        # uncancel() counts as in asyncio.timeout: if the task was also cancelled by others, their cancellation stands.
        if self._cut and kind is asyncio.CancelledError and task is not None and task.uncancel() == 0:
            if self.whole:
                return True  # the end came after the call was given up, and before its task was cancelled
            raise GivenUpError from None
        return False
