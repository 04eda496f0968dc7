"""Token counts of a past, updated token by token, so that a step looks at the newest token and not at all of them.

It only saves work: a tally made again from the same past is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Made = TypeVar("Made")


class Kept(Generic[Made]):
    """Keeps what was made from some objects, as long as one of the last two steps asked for it.

    If steps overlap, a sequence that looks back may run in only every other step (ADR 0021). Objects are distinguished
    by identity; an object that is held here keeps its id().
    """

    def __init__(self) -> None:
        self._now: dict[tuple[int, ...], tuple[tuple[object, ...], Made]] = {}
        self._before: dict[tuple[int, ...], tuple[tuple[object, ...], Made]] = {}
        self._earlier: dict[tuple[int, ...], tuple[tuple[object, ...], Made]] = {}

    def __len__(self) -> int:
        return len(self._now | self._before | self._earlier)

    def of(self, sources: tuple[object, ...], make: Callable[[], Made]) -> Made:
        """Return what is kept for `sources`, or make it with `make`."""
        key = tuple([id(source) for source in sources])
        entry = self._now.get(key) or self._before.get(key) or self._earlier.get(key) or (sources, make())
        self._now[key] = entry
        return entry[1]

    def step(self) -> None:
        """Begin a step: forget what neither of the last two steps asked for."""
        self._earlier, self._before, self._now = self._before, self._now, {}


class Tally:
    """The distinct tokens of a prompt and an output, and how often the output holds each."""

    def __init__(self, prompt: Sequence[int] = ()) -> None:
        distinct = dict.fromkeys(prompt)
        self._size = len(distinct)
        self._places = dict(zip(distinct, range(self._size), strict=True))
        self._tokens = np.zeros(self._size + 64, dtype=np.int64)
        self._tokens[: self._size] = list(distinct)
        self._counts = np.zeros(len(self._tokens), dtype=np.float32)
        self._taken = 0

    def take(self, output: Sequence[int]) -> None:
        """Count the tokens that were added to the output since the last call."""
        for token in output[self._taken :]:
            place = self._places.setdefault(token, self._size)
            if place == self._size:
                self._append(token)
            self._counts[place] += 1
        self._taken = len(output)

    @property
    def tokens(self) -> Ids:
        """The distinct tokens; a view, valid until the next `take`."""
        return self._tokens[: self._size]

    @property
    def counts(self) -> npt.NDArray[np.float32]:
        """How often each of `tokens` is in the output (0: only in the prompt); a view as well."""
        return self._counts[: self._size]

    def _append(self, token: int) -> None:
        if self._size == len(self._tokens):
            self._tokens = np.concatenate((self._tokens, np.zeros_like(self._tokens)))
            self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
        self._tokens[self._size] = token
        self._size += 1
