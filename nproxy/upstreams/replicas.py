"""Replicas: one base URL or Unix socket each, with what is in flight on it and whether it was reachable."""

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
"""How long a replica that could not be reached is passed over while another one can be."""

LONGEST_REST_SECONDS = 300.0
"""How long a replica is left alone that asks for it, as long as a breaker is open at most: a clock may be wrong."""

Source = Literal["static", "dns", "registered"]
"""Where a replica comes from: the configuration, a name that it resolves, or the server itself."""


@dataclass(slots=True, eq=False)
class Replica:
    """One place where an upstream answers.

    base: its URL without a slash at the end, `/v1` included. label: how it is named in metrics and the status page.
    authority: the name and port that it is called by, where its URL holds an address. source: how it is known of.
    weight: its share of the calls, measured against the others'. models: the upstream's names of those that it serves,
    None for all of the upstream's. draining: it gets no new calls.
    legs, choices: calls in flight and the choices they carry. begun: calls so far. ended: how many of them ended how,
    for the metrics. errors: how many were answered with an error, by its status and whether the key was nproxy's own.
    reserved: one of them has the replica for itself. speaker: whose answer said something last.
    trusted_until: by then it is known to stream several calls at once, in monotonic seconds. up: whether the last
    attempt to reach it succeeded, None before the first. resting_until: it asked to be left alone till then. breaker,
    health: how it stats, by calls and while nobody calls it. told_until: the log has been told of its breaker, and is
    not again before. cancel_handles: of the calls in flight.
    """

    base: str
    socket: Path | None
    label: str
    authority: str | None = None
    source: Source = "static"
    weight: float = 1.0
    models: frozenset[str] | None = None
    draining: bool = False
    legs: int = 0
    choices: int = 0
    begun: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    errors: Counter[tuple[int, bool]] = field(default_factory=Counter)
    reserved: bool = False
    speaker: object | None = None
    trusted_until: float = -inf
    up: bool | None = None
    avoid_until: float = 0.0
    resting_until: float = 0.0
    told_until: float = -inf
    breaker: Breaker = field(default_factory=lambda: Breaker(None))
    health: HealthChecks = field(default_factory=lambda: HealthChecks(config.Health(interval=None)))
    cancel_handles: set[CancelHandle] = field(default_factory=set)
    _urls: dict[str, URL] = field(default_factory=dict)

    @classmethod
    def from_config(cls, replica: config.Replica) -> Replica:
        return cls(base=replica.url, socket=replica.socket, label=str(replica), weight=replica.weight)

    def url(self, path: str) -> URL:
        """The URL of an endpoint, such as `/chat/completions`, below the base."""
        url = self._urls.get(path)
        if url is None:
            url = self._urls[path] = URL(self.base + path, encoded=True)
        return url

    def root_url(self, raw_target: str) -> URL:
        """The URL of a raw request target (`/v1/...?query`), where the base stands for `/v1`; bytes stay as they are.

        A path outside /v1 is looked for beside the base: `http://host/v1` answers `/tokenize` at `http://host/tokenize`.
        """
        if raw_target == "/v1" or raw_target.startswith(("/v1/", "/v1?")):
            return URL(self.base + raw_target[3:], encoded=True)
        return URL(self.base.removesuffix("/v1") + raw_target, encoded=True)

    @property
    def server_name(self) -> str | None:
        """The name that its certificate must be for, where it is not the host of the URL."""
        return None if self.authority is None else self.authority.partition(":")[0]

    def follow(self, given: Replica) -> None:
        """Take from another object for the same place what may change while it is in use."""
        self.authority, self.source = given.authority, given.source
        self.weight, self.models, self.draining = given.weight, given.models, given.draining

    def serves(self, model: str | None) -> bool:
        """Whether calls for a model, by the upstream's name of it, may go here; None: a call that names none."""
        return self.models is None or model is None or model in self.models

    def has_room(self, parallel: int | None) -> bool:
        """Whether one more call may be made, where so many at once are allowed; None for any number."""
        return not self.draining and not self.reserved and (parallel is None or self.legs < parallel)

    def admits(self, who: object, now: float, *, last_resort: bool = False) -> bool:
        """Whether a call of this request may be made at all. last_resort: no other replica is in order."""
        if self.draining or (self.health.down and not last_resort):
            return False
        return self.breaker.admits(who, now, last_resort=last_resort)

    def answers(self, now: float) -> bool:
        """Whether it is there, be it to fail: it was reached when that was tried last, and said something."""
        return not self.draining and now >= self.avoid_until and self.breaker.answers

    def flawed(self, now: float) -> bool:
        """Whether others are preferred: it was not reached a moment ago, asked to be left alone, or gave no answer."""
        return now < self.avoid_until or now < self.resting_until or self.health.doubtful

    def take(self, who: object, choices: int, now: float, *, alone: bool) -> None:
        """Count a call that is made."""
        self.begun += 1
        self.legs += 1
        self.choices += choices
        self.reserved = alone
        self.breaker.called(who, now)
        self.health.called(now)

    def release(self, who: object, choices: int) -> None:
        """Count a call that is over."""
        self.legs -= 1
        self.choices -= choices
        self.reserved = False
        self.breaker.left(who)
        if not self.legs:
            self.health.idle()

    def heard(self, who: object, now: float) -> bool:
        """Note that a call brought something; True where its breaker closed by it."""
        self.health.heard(now)
        return self.breaker.spoke(who, now)

    def rest(self, seconds: float, now: float) -> None:
        """Note that it asked to be left alone for so long; LONGEST_REST_SECONDS at most."""
        self.resting_until = max(self.resting_until, now + min(seconds, LONGEST_REST_SECONDS))

    def cancel_handle(self, model: str | None = None) -> CancelHandle:
        """A cancel_handle of a call of the current task, which asks for a model."""
        return CancelHandle(self.cancel_handles, model)

    @property
    def breaker_state(self) -> State:
        return self.breaker.state(time.monotonic())

    @property
    def shut(self) -> bool:
        """Whether its breaker keeps requests from it."""
        return self.breaker.shut(time.monotonic())

    def reached(self) -> None:
        """Note that the replica has answered."""
        self.up = True
        self.avoid_until = 0.0

    def unreachable(self) -> None:
        """Note that no connection came about."""
        self.up = False
        self.avoid_until = time.monotonic() + AVOID_SECONDS
        self.health.suspect()
