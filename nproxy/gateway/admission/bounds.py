"""The limits that all keys share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from nproxy.config import Config
from nproxy.gateway.admission.messages import Ask


@dataclass(frozen=True, slots=True)
class Bounds:
    """What all keys share. inflight, queue: choices. seconds: the longest wait. upstreams: most choices on each."""

    inflight: int
    queue: int
    seconds: float
    upstreams: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, config: Config) -> Self:
        """What the configuration says."""
        limits = config.limits
        each = {upstream.name: upstream.max_inflight for upstream in config.upstreams}
        return cls(limits.inflight_choices, limits.queue_choices, limits.queue_seconds, each)

    def too_narrow_for(self, ask: Ask) -> int | None:
        """The limit, of these or the key's own, under which the request would never fit; None where it may."""
        limits = (self.inflight, ask.most, self.upstreams.get(ask.upstream), ask.rates.choices)
        least = self.inflight
        for limit in limits:
            if limit is not None and limit < least:
                least = limit
        return least if ask.choices > least else None
