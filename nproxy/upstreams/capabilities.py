"""What is known of an upstream's capabilities: from the configuration, and from what its answers taught."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import Literal, assert_never

from nproxy.choices.capability import Capability
from nproxy.choices.lessons import FieldRefused, Lacks, Lesson, NativeWidth, OneAtATime, Scores, Verdict
from nproxy.config import NativeUpTo, Upstream
from nproxy.upstreams.widths import Width

LESSON_SECONDS = 600.0
"""How long a lesson is believed. Then it is tested again: servers are upgraded, and restarted with other settings."""

MOST_LESSONS = 1024

SIGHTS = 2
"""After so many answers in a row without log probabilities there are none; a single one may be an exception."""

_SURENESS: tuple[Verdict, ...] = ("suspected", "refuted", "confirmed")
"""Verdicts on whether calls must be made one at a time. A verdict is replaced only by itself or by a later one here."""

NMode = Literal["auto", "native", "fanout"] | NativeUpTo


@dataclass(frozen=True, slots=True)
class _Learned:
    what: Width | Verdict | int | None  # of "n", "parallel", "logprobs" (answers in a row); None: the lesson holds
    until: float


@dataclass(slots=True)
class _Made:
    """A snapshot for a model. It holds until a lesson expires."""

    capability: Capability
    until: float


class Capabilities:
    """One upstream's capabilities, per model. Plans are made from a `snapshot`; `learn` takes what an answer taught.

    replicas: how many there are now; None for the number in the configuration. clock: a monotonic time in seconds.
    """

    def __init__(
        self,
        upstream: Upstream,
        replicas: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._n: NMode = upstream.n
        self._seed = upstream.seed
        self._prompts = upstream.prompts
        self._clock = clock
        self._learned: dict[tuple[str, str], _Learned] = {}
        self._made: dict[tuple[str, str | None], _Made] = {}  # with the present lessons and number of replicas
        self._configured = () if upstream.models == "auto" else tuple(upstream.models)
        self._parallel = None if upstream.parallel == "auto" else upstream.parallel
        self._spread = not upstream.prefix_cache
        self._replicas = len(upstream.replicas) if replicas is None else replicas
        self._base = Capability(
            native_width=_configured_width(upstream.n),
            exact=upstream.wire == "exact",
            seed=upstream.seed != "omit",
            json_usage=upstream.usage != "stream",
            prefix_cache=upstream.prefix_cache,
        )

    def count_replicas(self, replicas: int) -> None:
        """Take the number of replicas that there are now."""
        self._replicas = replicas
        self._made.clear()

    def snapshot(self, model: str, upstream_model: str | None) -> Capability:
        """The capabilities for `model` as of now. upstream_model: the upstream's name for it; None if the same."""
        now = self._clock()
        known = self._made.get((model, upstream_model))
        if known is None or known.until <= now:
            for expired in [key for key, one in self._learned.items() if key[0] == model and one.until <= now]:
                del self._learned[expired]
            made = self._as_of_now(model, upstream_model)
            until = min((one.until for (of, _), one in self._learned.items() if of == model), default=inf)
            if len(self._made) >= MOST_LESSONS:
                self._made.clear()
            known = self._made[model, upstream_model] = _Made(made, until)
        return known.capability

    def _as_of_now(self, model: str, upstream_model: str | None) -> Capability:
        width, untested, seen = self._base.native_width, False, None
        if self._n == "auto":
            known = self._width(model)
            untested = known is None or known.doubted
            width, seen = (None, None) if known is None else (None if untested else known.limit, known.worked)
        verdict = self._verdict(model)
        alone = verdict in ("suspected", "confirmed")
        return replace(
            self._base,
            native_width=width,
            prompt_lists=self._takes_lists(model, width),
            parallel=self._legs_at_once(1 if alone else self._parallel),
            alone=alone,
            alone_on_trial=verdict == "suspected",
            n_untested=untested,
            stream_n=self._recall(model, "stream_n") is None,
            width_seen=seen,
            seed_refused=self._seed != "send" and self._recall(model, "seed") is not None,
            stream_options=self._recall(model, "stream_options") is None,
            request_id=self._recall(model, "request_id") is None,
            logprobs=not self._believed(model, "logprobs"),
            stream_usage=self._recall(model, "stream_usage") is None,
            json_usage=self._base.json_usage and self._recall(model, "json_usage") is None,
            model=upstream_model,
        )

    def _takes_lists(self, model: str, width: int | None) -> bool:
        """Whether legacy completions take lists of prompts. A server without `n` seldom does; mlx-lm's dies of them."""
        if self._prompts != "auto":
            return self._prompts == "list"
        return width != 1 and self._recall(model, "prompt_lists") is None

    def learn(self, model: str, lesson: Lesson) -> bool:
        """Keep a lesson about `model` for a while; return whether it was new. The configuration takes precedence."""
        match lesson:
            case NativeWidth(asked=asked, got=got):
                return self._n == "auto" and self._keep(model, "n", (self._width(model) or Width()).after(asked, got))
            case Lacks(what="stream_n" as what):
                return self._n == "auto" and self._keep(model, what)
            case Lacks(what="logprobs" as what):
                return self._keep(model, what, min(self._sights(model) + 1, SIGHTS))
            case Scores():
                self._made.clear()
                return self._learned.pop((model, "logprobs"), None) is not None
            case FieldRefused(field=what) | Lacks(what=what):
                return self._keep(model, what)
            case OneAtATime(verdict=verdict):
                held = self._verdict(model)
                surer = held is None or _SURENESS.index(verdict) >= _SURENESS.index(held)
                return self._parallel is None and surer and self._keep(model, "parallel", verdict)
            case _:
                assert_never(lesson)

    def known(self) -> dict[str, dict[str, int | bool | None]]:
        """What was learned and is still believed, per model.

        `n` is the width of the widest call (None: no limit was found), `parallel` how many calls at once; all others
        are False.
        """
        known: dict[str, dict[str, int | bool | None]] = {}
        for model, what in list(self._learned):
            if self._believed(model, what):
                kept = self._learned[model, what].what
                shown = kept.limit if isinstance(kept, Width) else 1 if what == "parallel" else False
                known.setdefault(model, {})[what] = shown
        return known

    def status(self) -> dict[str, dict[str, int | bool | str | None]]:
        """What is believed now of each model that is configured or was learned about.

        `n` is the width of the widest call: None for no known limit, "untested" if no answer has shown it yet.
        `parallel` is how many calls of one request are made at once: None for no limit.
        """
        models = dict.fromkeys([*self._configured, *self.known()])
        return {model: _as_json(self.snapshot(model, None)) for model in models}

    def _legs_at_once(self, parallel: int | None) -> int | None:
        """How many legs of a request may run at once, if each replica takes `parallel`; None for no limit.

        That is at all replicas together, or at one replica if all legs go to one.
        """
        return None if parallel is None else parallel * (max(1, self._replicas) if self._spread else 1)

    def _width(self, model: str) -> Width | None:
        learned = self._recall(model, "n")
        return learned.what if learned is not None and isinstance(learned.what, Width) else None

    def _sights(self, model: str) -> int:
        """How many answers in a row lacked the log probabilities that were requested."""
        learned = self._recall(model, "logprobs")
        return learned.what if learned is not None and isinstance(learned.what, int) else 0

    def _believed(self, model: str, what: str) -> bool:
        """Whether something was learned, and is not in doubt."""
        learned = self._recall(model, what)
        match None if learned is None else learned.what:
            case Width(doubted=doubted):
                return not doubted
            case str(verdict):
                return verdict == "confirmed"
            case int(sights):
                return sights >= SIGHTS
            case None:
                return learned is not None

    def _keep(self, model: str, name: str, what: Width | Verdict | int | None = None) -> bool:
        """Keep a lesson. Returns whether it differs from what was known."""
        known = self._recall(model, name)
        self._made.clear()
        self._learned.pop((model, name), None)
        while len(self._learned) >= MOST_LESSONS:
            del self._learned[next(iter(self._learned))]  # the oldest: clients may make up names of models
        self._learned[model, name] = _Learned(what, self._clock() + LESSON_SECONDS)
        return known is None or known.what != what

    def _verdict(self, model: str) -> Verdict | None:
        learned = self._recall(model, "parallel")
        return learned.what if learned is not None and isinstance(learned.what, str) else None

    def _recall(self, model: str, what: str) -> _Learned | None:
        learned = self._learned.get((model, what))
        if learned is not None and learned.until <= self._clock():
            del self._learned[model, what]
            return None
        return learned


def _as_json(capability: Capability) -> dict[str, int | bool | str | None]:
    return {
        "n": "untested" if capability.n_untested else capability.native_width,
        "stream_n": capability.stream_n,
        "seed": capability.seed and not capability.seed_refused,
        "stream_options": capability.stream_options,
        "request_id": capability.request_id,
        "prompt_lists": capability.prompt_lists,
        "logprobs": capability.logprobs,
        "stream_usage": capability.stream_usage,
        "json_usage": capability.json_usage,
        "prefix_cache": capability.prefix_cache,
        "parallel": capability.parallel,
    }


def _configured_width(n: NMode) -> int | None:
    if isinstance(n, NativeUpTo):
        return n.native_up_to
    return 1 if n == "fanout" else None
