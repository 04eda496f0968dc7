"""The cancel_handle of a call: lets it be given up from outside while it waits for its upstream."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self


class GivenUpError(Exception):
    """The call was given up."""


class CancelHandle:
    """Belongs to one call and to the task that makes it. model: that it asks for. spoken: something of its answer has
    come.

    all: where it can be found while a block `with line:` runs, in which the call is made. The block raises GivenUpError
    where the call is given up before its answer is `whole`.
    """

    __slots__ = ("_all", "_cut", "_over", "_task", "model", "spoken")

    def __init__(self, all: set[CancelHandle], model: str | None = None) -> None:
        self._all = all
        self.model = model
        self._task = asyncio.current_task()
        self._cut = False
        self._over = False
        self.spoken = False

    def cut(self) -> None:
        """Give the call up."""
        if not self._cut and not self._over and self._task is not None:
            self._cut = True
            self._task.cancel()

    def whole(self) -> None:
        """The answer has come to its end: there is nothing left to give up."""
        self._over = True

    def __enter__(self) -> Self:
        self._all.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        self._all.discard(self)
        # Counted by the task as in asyncio.timeout: whoever else cancelled it has the last word.
        if self._cut and kind is asyncio.CancelledError and self._task is not None and self._task.uncancel() == 0:
            raise GivenUpError from None
