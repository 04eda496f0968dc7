"""What is known of an upstream's abilities: from the configuration, and from what its answers taught."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from nproxy.choices.capability import Capability
from nproxy.choices.lessons import Lesson, NativeWidth
from nproxy.config import NativeUpTo, Upstream

FORGET_SECONDS = 600.0
"""A lesson older than this is asked again: servers are upgraded and restarted with other settings."""

NMode = Literal["auto", "native", "fanout"] | NativeUpTo


@dataclass(frozen=True, slots=True)
class _Learned:
    width: int | None  # most choices of one call; None: as many as asked for so far
    until: float


class Capabilities:
    """One upstream's abilities, per model. `snapshot` is what a plan is made from; `learn` takes what an answer taught.

    clock: seconds that never go back.
    """

    def __init__(self, upstream: Upstream, clock: Callable[[], float] = time.monotonic) -> None:
        self._n: NMode = upstream.n
        self._clock = clock
        self._learned: dict[str, _Learned] = {}
        self._base = Capability(
            native_width=_configured_width(upstream.n),
            exact=upstream.wire == "exact",
            seed=upstream.seed != "omit",
            parallel=None if upstream.parallel == "auto" else upstream.parallel,
        )

    def snapshot(self, model: str, upstream_model: str | None) -> Capability:
        """The abilities for `model` as of now; `upstream_model` is the upstream's own name where it differs."""
        width, untested = self._base.native_width, False
        if self._n == "auto":
            learned = self._recall(model)
            width, untested = (None, True) if learned is None else (learned.width, False)
        return replace(self._base, native_width=width, n_untested=untested, model=upstream_model)

    def learn(self, model: str, lesson: Lesson) -> None:
        """Keep a lesson about `model` for a while. A configured width is not unlearned."""
        if self._n != "auto":
            return
        match lesson:
            case NativeWidth(asked=asked, got=got):
                until = self._clock() + FORGET_SECONDS
                self._learned[model] = _Learned(None if got >= asked else max(1, got), until)

    def known(self) -> dict[str, int | None]:
        """What was learned and is still believed: the widest call per model, None where no limit showed."""
        return {model: kept.width for model in list(self._learned) if (kept := self._recall(model)) is not None}

    def _recall(self, model: str) -> _Learned | None:
        learned = self._learned.get(model)
        if learned is not None and learned.until <= self._clock():
            del self._learned[model]
            return None
        return learned


def _configured_width(n: NMode) -> int | None:
    if isinstance(n, NativeUpTo):
        return n.native_up_to
    return 1 if n == "fanout" else None
