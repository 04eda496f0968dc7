"""The settings of the conduct, made from the configuration."""

from __future__ import annotations

from math import inf

from nproxy.choices.settings import ConductSettings
from nproxy.config import Config
from nproxy.upstreams.upstream import Upstream


class Conducting:
    """Makes the settings of conducts for one configuration, and keeps them. greedy: see `n_policy.greedy`."""

    def __init__(self, config: Config) -> None:
        self.greedy = config.n_policy.greedy
        self._config = config
        self._made: dict[tuple[str, bool, bool], ConductSettings] = {}

    def at(self, upstream: Upstream, *, fallback: bool, fallback_available: bool) -> ConductSettings:
        """Return the settings for a request at one upstream. fallback, fallback_available: see ConductSettings."""
        key = upstream.name, fallback, fallback_available
        if (made := self._made.get(key)) is None:
            made = self._made[key] = self._settings(upstream, fallback=fallback, fallback_available=fallback_available)
        return made

    def _settings(self, upstream: Upstream, *, fallback: bool, fallback_available: bool) -> ConductSettings:
        stream, settings = self._config.stream, upstream.settings
        return ConductSettings(
            retries_per_leg=settings.retries.per_leg,
            resume=settings.resume,
            chat_continues=settings.chat_continues,
            ping_seconds=inf if stream.ping_seconds is None else stream.ping_seconds,
            partial=self._config.n_policy.on_leg_failure == "partial",
            headers_after_seconds=inf if stream.headers_after_seconds is None else stream.headers_after_seconds,
            fallback=fallback,
            fallback_available=fallback_available,
        )
