"""The core shared by threads: a thread that waits for news runs the steps for all of them."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Event, Lock, get_ident

from engine.core import Core
from engine.errors import CoreFailed, EngineError, RequestError
from engine.messages import Abort, Add, Embed, Embedded, GroupFailed, Ready, Started, TokenDrawn
from engine.server.failures import error_of

News = Started | TokenDrawn | Embedded


class SharedCore:
    """A core, and what it has reported about each group that has not been taken yet.

    room: sequences that it takes at once.
    """

    def __init__(self, core: Core, room: int) -> None:
        self.ready: Ready = core.ready
        self._core: Core | None = core
        self._why_none = "this engine is closed"
        self._room = room
        self._lock = Lock()
        self._line: deque[Event] = deque()  # of threads that want news, in the order in which they came
        self._threads: set[int] = set()  # those in the line
        self._process = os.getpid()
        self._numbers = itertools.count()
        self._inboxes: dict[int, list[News | GroupFailed]] = {}
        self._left: deque[Abort] = deque()

    def number(self) -> int:
        """Return a number for a new group."""
        return next(self._numbers)

    def news(
        self, groups: Collection[int], waiting: deque[Add | Embed], rules: Sequence[str] = ()
    ) -> dict[int, list[News]]:
        """Return what was reported about these groups, for those that have news; run a step if none has.

        waiting: those of the groups that are not in the core yet; they are added when it has room. rules: the request's
        fields that exclude tokens. Raises EngineError if the core failed on one of the groups, or is closed, or if the
        call would wait for ever, RequestError if one can never run, or cannot go on under the rules.
        """
        if os.getpid() != self._process:  # the threads of the kernels are not there
            raise EngineError("this engine was loaded before the process was forked; load one in each, or spawn them")
        with self._turn(), self._lock:
            self._end_what_was_left()
            if not any(self._inboxes.get(group) for group in groups):
                self._admit(waiting)
                self._step()
            taken: dict[int, list[News]] = {}
            for group in groups:
                if inbox := self._inboxes.get(group):
                    self._inboxes[group] = []
                    taken[group] = [_good(one, rules) for one in inbox]
            return taken

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Let threads in one after the other, each as often as the others.

        A lock alone would mostly go to the thread that has just released it: that one would run step after step while
        the others wait for what these have drawn for them.
        """
        mine = Event()
        with self._alone_on_its_thread():
            try:
                self._line.append(mine)
                if self._line[0] is not mine:
                    mine.wait()
                yield
            finally:
                with suppress(ValueError):  # interrupted before it was in the line
                    self._line.remove(mine)
                with suppress(IndexError):
                    self._line[0].set()

    @contextmanager
    def _alone_on_its_thread(self) -> Iterator[None]:
        """Raise EngineError for a call from a signal handler that interrupted another one, for which it would wait."""
        thread = get_ident()
        if thread in self._threads:
            raise EngineError("this call began in the middle of another one on the same thread, and would wait for it")
        try:
            self._threads.add(thread)
            yield
        finally:
            self._threads.discard(thread)

    def abort(self, group: int, choices: tuple[int, ...]) -> None:
        """End some choices. Raises EngineError as `news`."""
        with self._alone_on_its_thread(), self._lock:
            self._loaded.abort(Abort(group, choices))

    def leave(self, groups: Collection[int]) -> None:
        """Note that these groups are not waited for any more: what still runs of them is ended, now or before the next
        step.

        The garbage collector may call this in the middle of a step, on the thread that runs it.
        """
        self._left += map(Abort, groups)
        if self._lock.acquire(blocking=False):
            try:
                self._end_what_was_left()
            finally:
                self._lock.release()

    def _end_what_was_left(self) -> None:
        while self._left:  # entries are removed only under the lock
            abort = self._left.popleft()
            if self._inboxes.pop(abort.group, None) is not None and self._core is not None:
                self._core.abort(abort)

    def close(self) -> None:
        """Release the core; calls that wait, and later calls, get an EngineError."""
        with self._alone_on_its_thread(), self._lock:
            self._core = None

    def _admit(self, waiting: deque[Add | Embed]) -> None:
        core = self._loaded
        while waiting and core.places_taken + _width(waiting[0]) <= self._room:
            message = waiting.popleft()
            self._inboxes[message.group] = []
            core.add(message)

    def _step(self) -> None:
        core = self._loaded
        try:
            done = core.step()
        except BaseException as error:
            failed = isinstance(error, CoreFailed)
            if failed or core.cut_short:
                self._core = None  # its state of the sequences is no longer valid
                why = "has failed; see its log" if failed else "was interrupted in a step; load it anew"
                self._why_none = f"this engine {why}"
            raise
        news: list[News | GroupFailed] = [*done.started, *done.tokens, *done.embedded, *done.failed]
        for one in news:
            if (inbox := self._inboxes.get(one.group)) is not None:
                inbox.append(one)

    @property
    def _loaded(self) -> Core:
        if self._core is None:
            raise EngineError(self._why_none)
        return self._core


def _width(message: Add | Embed) -> int:
    return len(message.choices) if isinstance(message, Add) else 1


def _good(one: News | GroupFailed, rules: Sequence[str]) -> News:
    if isinstance(one, GroupFailed):
        error = error_of(one, rules)
        raise EngineError(error.message) if one.kind == "failed" else RequestError(error.message, error.param)
    return one
