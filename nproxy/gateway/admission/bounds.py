"""The limits that all keys share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from nproxy.config import Config
from nproxy.gateway.admission.messages import Ask


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits that all keys share.

    inflight, queue: in choices. seconds: the longest wait. upstreams: the most choices in flight at each.
    """

    inflight: int
    queue: int
    seconds: float
    upstreams: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, config: Config) -> Self:
        """Return the limits of a configuration."""
        limits = config.limits
        each = {upstream.name: upstream.max_inflight for upstream in config.upstreams}
        return cls(limits.inflight_choices, limits.queue_choices, limits.queue_seconds, each)

    def too_narrow_for(self, ask: Ask) -> int | None:
        """Return the limit, of these and the key's own, that the request exceeds by itself; None if it may fit."""
        limits = (self.inflight, ask.most, self.upstreams.get(ask.upstream), ask.rates.choices)
        least = self.inflight
        for limit in limits:
            if limit is not None and limit < least:
                least = limit
        return least if ask.choices > least else None
