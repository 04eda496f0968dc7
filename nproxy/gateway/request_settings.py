"""What requests read of the configuration, as one object per configuration."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from nproxy.choices.settings import ConductSettings
from nproxy.config import Config, Key
from nproxy.gateway.answering import WriteGuard
from nproxy.gateway.edge import Edge
from nproxy.openai.requests import Limits
from nproxy.upstreams.upstream import Upstream

MOST_CHOICES = 512
"""The most choices of one request: prompts x n."""


class RequestSettings:
    """The settings of requests. A reload makes another object, and requests in flight keep theirs.

    config: all settings. edge: keys, CORS and trusted proxies. limits: of what a request may ask for. body_limit: the
    most bytes of a body. write_guard: ends answers that are not read. trace_ratio, log_content: see `telemetry`.
    greedy: see `n_policy.greedy`. has_admin_port: some paths are served there only.
    """

    def __init__(self, config: Config, keys: Sequence[Key]) -> None:
        """keys: those of the keys file."""
        self.config = config
        self.edge = Edge.of(config, keys)
        self.limits = Limits(max_n=config.n_policy.max_n, max_choices=min(MOST_CHOICES, config.limits.inflight_choices))
        self.body_limit = int(config.limits.body_mib * 1024 * 1024)
        self.write_guard = WriteGuard(config.limits.write_seconds)
        self.trace_ratio = config.telemetry.trace_ratio
        self.log_content = config.telemetry.log_content
        self.greedy = config.n_policy.greedy
        self.has_admin_port = config.admin is not None
        self._conducts: dict[tuple[str, bool, bool], ConductSettings] = {}

    def conduct(self, upstream: Upstream, *, fallback_possible: bool, fallback_available: bool) -> ConductSettings:
        """Return the settings for a request at one upstream. The flags are those of ConductSettings."""
        key = upstream.name, fallback_possible, fallback_available
        if (made := self._conducts.get(key)) is None:
            made = self._conducts[key] = self._conduct(
                upstream, fallback_possible=fallback_possible, fallback_available=fallback_available
            )
        return made

    def _conduct(self, upstream: Upstream, *, fallback_possible: bool, fallback_available: bool) -> ConductSettings:
        stream, settings = self.config.stream, upstream.settings
        return ConductSettings(
            retries_per_leg=settings.retries.per_leg,
            resume=settings.resume,
            chat_continues=settings.chat_continues,
            ping_seconds=inf if stream.ping_seconds is None else stream.ping_seconds,
            partial=self.config.n_policy.on_leg_failure == "partial",
            headers_after_seconds=inf if stream.headers_after_seconds is None else stream.headers_after_seconds,
            fallback_possible=fallback_possible,
            fallback_available=fallback_available,
        )
