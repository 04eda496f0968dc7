"""Replicas: one base URL or Unix socket each, with its calls in flight and whether it was reachable."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Literal

from yarl import URL

from nproxy import config
from nproxy.upstreams.breaker import Breaker, State
from nproxy.upstreams.cancel_handle import CancelHandle
from nproxy.upstreams.health_checks import HealthChecks

AVOID_SECONDS = 5.0
"""How long a replica that could not be reached is avoided while another one can be called."""

LONGEST_REST_SECONDS = 300.0
"""The longest pause that a replica gets at its own request: as long as a breaker is open at most. A server's
clock may be wrong.
"""

Source = Literal["static", "dns", "registered"]
"""How a replica is known: from the configuration, from a host name in it, or because the server registered itself."""


@dataclass(slots=True, eq=False)
class Replica:
    """One address at which an upstream answers."""

    base: str
    """Its URL without a slash at the end, `/v1` included."""
    socket: Path | None
    """Its Unix socket; None if it is reached by host and port."""
    label: str
    """Its name in metrics and on the status page."""
    authority: str | None = None
    """The name and port that it is called by, if its URL holds an address."""
    source: Source = "static"
    weight: float = 1.0
    """Its share of the calls, relative to the weights of the others."""
    models: frozenset[str] | None = None
    """The upstream's names of the models that it serves; None for all models of the upstream."""
    draining: bool = False
    """It gets no new calls."""
    legs: int = 0
    """Calls in flight."""
    legs_elsewhere: int = 0
    """Calls that workers which are leaving still have here; they count against `parallel`, for their successor."""
    choices: int = 0
    """The choices that the calls in flight carry."""
    begun: int = 0
    """All calls so far."""
    ended: Counter[str] = field(default_factory=Counter)
    """How many calls ended with which outcome, for the metrics."""
    errors: Counter[tuple[int, bool]] = field(default_factory=Counter)
    """How many calls were answered with an error, by its status and whether the key was nproxy's own."""
    reserved: bool = False
    """A call in flight has the replica for itself."""
    speaker: object | None = None
    """The call whose answer brought something last; see ConcurrentCalls."""
    trusted_until: float = -inf
    """Until then it is believed to stream several calls at once; monotonic seconds."""
    up: bool | None = None
    """Whether it was reachable, by the last call or by its health checks; None before the first call."""
    avoid_until: float = 0.0
    """Until then others are preferred, because it could not be reached; monotonic seconds."""
    resting_until: float = 0.0
    """The end of the pause that it asked for, during which others are preferred; monotonic seconds."""
    told_until: float = -inf
    """The log has been told of its breaker, and is not told again before this time."""
    breaker: Breaker = field(default_factory=lambda: Breaker(None))
    """Its state by the results of calls."""
    health: HealthChecks = field(default_factory=lambda: HealthChecks(config.Health(interval=None)))
    """Its state by the results of health checks."""
    cancel_handles: set[CancelHandle] = field(default_factory=set)
    """Of the calls in flight."""
    _urls: dict[str, URL] = field(default_factory=dict)
    _times: float = 0.0  # the sum of the times at which calls ended, less those at which they began

    @classmethod
    def from_config(cls, replica: config.Replica) -> Replica:
        """Return the replica that the settings describe."""
        return cls(base=replica.url, socket=replica.socket, label=str(replica), weight=replica.weight)

    def url(self, path: str) -> URL:
        """The URL of an endpoint below the base, such as `/chat/completions`."""
        url = self._urls.get(path)
        if url is None:
            url = self._urls[path] = URL(self.base + path, encoded=True)
        return url

    def root_url(self, raw_target: str) -> URL:
        """The URL of a raw request target (`/v1/...?query`). The base replaces `/v1`; the other bytes stay as they are.

        A path outside /v1 is resolved beside the base: `http://host/v1` answers `/tokenize` at `http://host/tokenize`.
        """
        if raw_target == "/v1" or raw_target.startswith(("/v1/", "/v1?")):
            return URL(self.base + raw_target[3:], encoded=True)
        return URL(self.base.removesuffix("/v1") + raw_target, encoded=True)

    @property
    def server_name(self) -> str | None:
        """The name that its certificate must be for; None if that is the host of the URL."""
        return None if self.authority is None else self.authority.partition(":")[0]

    def follow(self, given: Replica) -> None:
        """Take over the attributes that may change during use from a new object for the same address."""
        self.authority, self.source = given.authority, given.source
        self.weight, self.models, self.draining = given.weight, given.models, given.draining

    def serves(self, model: str | None) -> bool:
        """Whether calls for a model, by the upstream's name, may go here. None: a call that names no model."""
        return self.models is None or model is None or model in self.models

    def has_room(self, parallel: int | None) -> bool:
        """Whether one more call may be made if `parallel` are allowed at once; None for no limit."""
        if self.draining or self.reserved:
            return False
        return parallel is None or self.legs + self.legs_elsewhere < parallel

    def admits(self, who: object, now: float, *, last_resort: bool = False) -> bool:
        """Whether a call of this request may be made at all. last_resort: no other replica is healthy."""
        if self.draining or (self.health.down and not last_resort):
            return False
        return self.breaker.admits(who, now, last_resort=last_resort)

    def answers(self, now: float) -> bool:
        """Whether it answers, even if only with errors.

        That is: it was not found unreachable within AVOID_SECONDS, and the last request that failed there was answered.
        """
        return not self.draining and now >= self.avoid_until and self.breaker.answers

    def flawed(self, now: float) -> bool:
        """Whether others are preferred: it was unreachable, asked to be left alone, or failed its last check."""
        return now < self.avoid_until or now < self.resting_until or self.health.doubtful

    def begin_call(self, who: object, choices: int, now: float, *, alone: bool) -> None:
        """Count a call that begins."""
        self.begun += 1
        self.legs += 1
        self._times -= now
        self.choices += choices
        self.reserved = alone
        self.breaker.called(who, now)
        self.health.called(now)

    def end_call(self, who: object, choices: int) -> None:
        """Count a call that has ended."""
        self.legs -= 1
        self._times += time.monotonic()
        self.choices -= choices
        self.reserved = False
        self.breaker.call_over(who)
        if not self.legs:
            self.health.idle()

    def call_seconds(self, now: float) -> float:
        """Return the seconds that all calls have taken, those in flight until now. now: monotonic seconds."""
        return self._times + self.legs * now

    def lives(self) -> None:
        """Note that bytes came for a call, which need not be a part of its answer."""
        self.health.heard(time.monotonic())

    def rest(self, seconds: float, now: float) -> None:
        """Note that it asked for a pause of so many seconds, by Retry-After or in words; see LONGEST_REST_SECONDS."""
        self.resting_until = max(self.resting_until, now + min(seconds, LONGEST_REST_SECONDS))

    @property
    def breaker_state(self) -> State:
        """The breaker's state now."""
        return self.breaker.state(time.monotonic())

    @property
    def shut(self) -> bool:
        """Whether its breaker refuses requests."""
        return self.breaker.shut(time.monotonic())

    def reached(self) -> None:
        """Note that the replica has answered, be it a check that goes on finding it down."""
        self.up = not self.health.down
        self.avoid_until = 0.0

    def reached_by_peer(self, began: float) -> None:
        """Note that the replica has answered another process, which asked at `began`: unless a later call failed."""
        if began > self.avoid_until - AVOID_SECONDS:
            self.reached()

    def unreachable(self) -> None:
        """Note that no connection could be established."""
        self.up = False
        self.avoid_until = time.monotonic() + AVOID_SECONDS
        self.health.suspect()
