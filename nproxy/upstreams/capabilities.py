"""What is known of an upstream's abilities: from the configuration, and from what its answers taught."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, assert_never

from nproxy.choices.capability import Capability
from nproxy.choices.lessons import FieldRefused, Lacks, Lesson, NativeWidth
from nproxy.config import NativeUpTo, Upstream

FORGET_SECONDS = 600.0
"""A lesson older than this is asked again: servers are upgraded and restarted with other settings."""

NMode = Literal["auto", "native", "fanout"] | NativeUpTo


@dataclass(frozen=True, slots=True)
class _Learned:
    value: int | None  # for "n": most choices of one call, None for as many as were asked for; for fields: unused
    until: float


class Capabilities:
    """One upstream's abilities, per model. `snapshot` is what a plan is made from; `learn` takes what an answer taught.

    clock: seconds that never go back.
    """

    def __init__(self, upstream: Upstream, clock: Callable[[], float] = time.monotonic) -> None:
        self._n: NMode = upstream.n
        self._seed = upstream.seed
        self._clock = clock
        self._learned: dict[tuple[str, str], _Learned] = {}
        self._base = Capability(
            native_width=_configured_width(upstream.n),
            exact=upstream.wire == "exact",
            seed=upstream.seed != "omit",
            json_usage=upstream.usage != "stream",
            prefix_cache=upstream.prefix_cache,
            parallel=_parallel(upstream),
        )

    def snapshot(self, model: str, upstream_model: str | None) -> Capability:
        """The abilities for `model` as of now; `upstream_model` is the upstream's own name where it differs."""
        width, untested = self._base.native_width, False
        if self._n == "auto":
            learned = self._recall(model, "n")
            width, untested = (None, True) if learned is None else (learned.value, False)
        return replace(
            self._base,
            native_width=width,
            n_untested=untested,
            seed=self._base.seed and (self._seed == "send" or self._recall(model, "seed") is None),
            stream_options=self._recall(model, "stream_options") is None,
            logprobs=self._recall(model, "logprobs") is None,
            model=upstream_model,
        )

    def learn(self, model: str, lesson: Lesson) -> None:
        """Keep a lesson about `model` for a while. What is configured is not unlearned."""
        until = self._clock() + FORGET_SECONDS
        match lesson:
            case NativeWidth(asked=asked, got=got):
                if self._n == "auto":
                    self._learned[model, "n"] = _Learned(None if got >= asked else max(1, got), until)
            case FieldRefused(field=what) | Lacks(what=what):
                self._learned[model, what] = _Learned(None, until)
            case _:
                assert_never(lesson)

    def known(self) -> dict[str, dict[str, int | bool | None]]:
        """What was learned and is still believed, per model: `n` is the widest call (None: no limit showed)."""
        told: dict[str, dict[str, int | bool | None]] = {}
        for model, what in list(self._learned):
            if (kept := self._recall(model, what)) is not None:
                told.setdefault(model, {})[what] = kept.value if what == "n" else False
        return told

    def _recall(self, model: str, what: str) -> _Learned | None:
        learned = self._learned.get((model, what))
        if learned is not None and learned.until <= self._clock():
            del self._learned[model, what]
            return None
        return learned


def _parallel(upstream: Upstream) -> int | None:
    """Legs of one request at once; where they go to one replica, as many as that one takes."""
    if upstream.parallel == "auto":
        return None
    return upstream.parallel * (1 if upstream.prefix_cache else len(upstream.replicas))


def _configured_width(n: NMode) -> int | None:
    if isinstance(n, NativeUpTo):
        return n.native_up_to
    return 1 if n == "fanout" else None
