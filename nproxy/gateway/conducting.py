"""The settings of the conduct, made from the configuration."""

from __future__ import annotations

from math import inf

from nproxy.choices.settings import ConductSettings
from nproxy.config import Config
from nproxy.upstreams.upstream import Upstream


def conduct_settings(
    config: Config, upstream: Upstream, *, fallback: bool, fallback_available: bool
) -> ConductSettings:
    """Return the settings for a request at one upstream. fallback, fallback_available: see ConductSettings."""
    stream, settings = config.stream, upstream.settings
    return ConductSettings(
        retries_per_leg=settings.retries.per_leg,
        resume=settings.resume,
        chat_continues=settings.chat_continues,
        ping_seconds=inf if stream.ping_seconds is None else stream.ping_seconds,
        partial=config.n_policy.on_leg_failure == "partial",
        headers_after_seconds=inf if stream.headers_after_seconds is None else stream.headers_after_seconds,
        fallback=fallback,
        fallback_available=fallback_available,
    )
