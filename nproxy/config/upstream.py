"""The settings of an upstream."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from nproxy.config.replicas import Replicas
from nproxy.config.sections import Settings
from nproxy.config.values import PATH, ApiKey, Count, Models, Name, NMode, Parallel, Seconds, Share, Whole


class Timeouts(Settings):
    """How long an upstream may take, in seconds. null: no limit."""

    connect: Seconds | None = 5
    """Until the connection is established."""
    first_event: Seconds | None = 120
    """From sending the call to the first event of a stream; comments that keep the connection alive do not count."""
    idle: Seconds | None = 60
    """Between two events of a stream; comments do not count. Raise it for servers that pause long under load."""
    response: Seconds | None = 600
    """From sending the call to the whole body, for calls that are answered with JSON."""
    total: Seconds | None = None
    """The whole call."""


class Retries(Settings):
    """When a call is retried: before its first event, or after it if `resume` allows it."""

    per_leg: Whole = 1
    """Maximum number of retries and resumes of one leg."""
    budget: Share = 0.2
    """Share of the calls of the last 10 s that may be retries (10 per second are always allowed)."""


class Breaker(Settings):
    """When calls to a replica stop for a while. A request counts once, however many of its legs failed."""

    in_a_row: Count = 5
    """The breaker opens after so many failed requests in a row; or"""
    ratio: Share = 0.5
    """if this share of requests failed,"""
    of: Count = 20
    """among so many or more,"""
    window: Seconds = 30
    """within the last so many seconds."""
    open: Seconds = 10
    """How long it stays open, in seconds; doubled each time the one trial request fails, up to 5 minutes."""


class Health(Settings):
    """Health checks of replicas, sent beside the calls."""

    interval: Seconds | None = 10
    """Seconds between two checks; null: no checks, only calls show how replicas are."""
    timeout: Seconds = 3
    """How long an answer may take, in seconds."""
    down_after: Count = 3
    """Number of failed checks in a row after which a replica gets no calls."""
    up_after: Count = 2
    """Number of good checks in a row after which it gets calls again."""
    path: Annotated[str, Field(pattern=PATH)] = "/v1/models"
    """The path to request; every answer except a 5xx counts as healthy."""


def _off(value: object) -> object:
    """Take false for off: YAML 1.1, unlike the loader used here, reads a bare off as false."""
    return "off" if value is False else value


Resume = Annotated[Literal["off", "replay", "continue"], BeforeValidator(_off)]


class Upstream(Settings):
    """A named group of replicas that serve the same models behind one policy."""

    name: Name
    """Shown in metrics, logs and the x-nproxy-upstream header."""
    replicas: Replicas
    """Base URLs, such as http://10.0.0.1:8000/v1; unix:/path of a socket; {url: ..., weight: 2}; or {dns: name:port}.
    Empty if servers register over the admin port."""
    models: Models = "auto"
    """auto: ask the upstream; or a list of ids; or a map of alias to the upstream's own name."""
    api_key: ApiKey = "passthrough"
    """passthrough: forward the client's Authorization; none: send nothing; otherwise the key to send."""
    n: NMode = "auto"
    """Whether `n` is sent: auto tries it and counts the choices, native always, fanout never, or up to a width."""
    wire: Literal["auto", "exact"] = "auto"
    """exact: the server is nproxy's own engine, whose bytes need no correction."""
    parallel: Parallel = "auto"
    """Maximum number of legs in flight per replica; further ones wait in order. auto: no limit, but one at a time at
    a server where nproxy finds that calls end each other."""
    seed: Literal["auto", "send", "omit"] = "auto"
    """Whether seeds are sent."""
    prefix_cache: bool = False
    """true: all legs go to one replica, and the first leg computes the prompt before the others start."""
    usage: Literal["auto", "stream"] = "auto"
    """stream: usage in non-streamed answers counts only one choice (llama.cpp); calls for several choices are made as
    streams."""
    prompts: Literal["auto", "one", "list"] = "auto"
    """Whether legacy completions accept lists of prompts; if not (one), each prompt is a call. auto: only if it has
    `n`."""
    balance: Literal["least_inflight", "prefix_affinity"] = "least_inflight"
    """Which replica takes a request: the least busy; or always the same one for a prompt, unless it is much busier."""
    timeouts: Timeouts = Timeouts()
    """How long the upstream may take."""
    retries: Retries = Retries()
    """When a call is retried."""
    breaker: Breaker | None = Breaker()
    """When a replica that fails gets no calls for a while; null: never."""
    health: Health = Health()
    """Health checks of each replica, if there is another replica or a fallback to use instead."""
    resume: Resume = "off"
    """What happens to a leg that is cut in mid-stream: off fails it; replay asks another replica with the same seed and
    continues where the text was cut; continue sends the text produced so far as a prefix."""
    chat_continues: Literal["no", "flag", "trailing"] = "no"
    """How the server continues the last assistant message, for resume: continue. flag: with continue_final_message
    (vLLM, SGLang, transformers); trailing: without a flag (llama.cpp); no: it cannot, and such legs fail."""
    fallback: tuple[str, ...] = ()
    """Upstreams to try, in this order, when this one cannot answer or has no capacity."""
    max_inflight: Count = 1024
    """Maximum number of choices in flight on this upstream; beyond it, requests wait in the queue."""
