"""The settings of an upstream."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from nproxy.config.replicas import Replicas
from nproxy.config.values import PATH, ApiKey, Count, Models, Name, NMode, Parallel, Seconds, Settings, Share, Whole


class Timeouts(Settings):
    """How long an upstream may take, in seconds. null: no limit."""

    connect: Seconds | None = 5
    """Until the connection stands."""
    first_event: Seconds | None = 120
    """From sending the call to the first event of a stream; comments that keep the connection alive are none."""
    idle: Seconds | None = 60
    """Between two events of a stream; comments are none. More for servers that are long silent under load."""
    response: Seconds | None = 600
    """From sending the call to the whole body, for calls answered in JSON form."""
    total: Seconds | None = None
    """The whole call."""


class Retries(Settings):
    """When a call is made again: before its first event, or behind it where `resume` says so."""

    per_leg: Whole = 1
    """Most retries and resumes of one leg."""
    budget: Share = 0.2
    """Share of the calls of the last 10 s that may be retries (10 a second are always allowed)."""


class Breaker(Settings):
    """When calls to a replica stop for a while. A request counts once, however many of its legs failed."""

    in_a_row: Count = 5
    """So many requests failed one after the other; or"""
    ratio: Share = 0.5
    """this share failed"""
    of: Count = 20
    """of the last so many or more,"""
    window: Seconds = 30
    """within so many seconds."""
    open: Seconds = 10
    """How long it stays shut; doubled each time the one call that tries it fails, up to 5 minutes."""


class Health(Settings):
    """How replicas are looked at while nobody calls them."""

    interval: Seconds | None = 10
    """Seconds between two looks; null: only calls show how they are."""
    timeout: Seconds = 3
    """How long an answer may take."""
    down_after: Count = 3
    """Failed looks in a row after which a replica gets no calls."""
    up_after: Count = 2
    """Answered looks in a row after which it gets them again."""
    path: Annotated[str, Field(pattern=PATH)] = "/v1/models"
    """What is asked for; every answer but a 5xx will do."""


def _off(value: object) -> object:
    """YAML reads a bare off as false."""
    return "off" if value is False else value


Resume = Annotated[Literal["off", "replay", "continue"], BeforeValidator(_off)]


class Upstream(Settings):
    """A named group of replicas that serve the same models behind one policy."""

    name: Name
    """Shown in metrics, logs and the x-nproxy-upstream header."""
    replicas: Replicas
    """Base URLs, as in http://10.0.0.1:8000/v1; unix:/path of a socket; {url: ..., weight: 2}; or {dns: name:port}.
    Empty where servers register over the admin port."""
    models: Models = "auto"
    """auto: ask the upstream; or a list of ids; or a map of alias to the upstream's own name."""
    api_key: ApiKey = "passthrough"
    """passthrough: the client's Authorization goes on; none: nothing is sent; else the key to send."""
    n: NMode = "auto"
    """Whether `n` is sent: auto tries and counts, native always, fanout never, or up to a width."""
    wire: Literal["auto", "exact"] = "auto"
    """exact: the server is nproxy's own engine, whose bytes need no mending."""
    parallel: Parallel = "auto"
    """Legs at once per replica; further ones wait in order. auto: no limit."""
    seed: Literal["auto", "send", "omit"] = "auto"
    """Whether seeds are sent."""
    prefix_cache: bool = False
    """true: all legs go to one replica, and the first computes the prompt before the others start."""
    usage: Literal["auto", "stream"] = "auto"
    """stream: usage of whole answers counts one choice only (llama.cpp); calls for several are asked for as streams."""
    prompts: Literal["auto", "one", "list"] = "auto"
    """Whether legacy completions take lists of prompts; if not (one), each prompt is a call. auto: if it has `n`."""
    balance: Literal["least_inflight", "prefix_affinity"] = "least_inflight"
    """Which replica takes a request: the least busy; or always the same for one prompt, unless that is much busier."""
    timeouts: Timeouts = Timeouts()
    """How long the upstream may take."""
    retries: Retries = Retries()
    """When a call is made again."""
    breaker: Breaker | None = Breaker()
    """When a replica that fails gets no calls for a while; null: never."""
    health: Health = Health()
    """How each replica is watched, where there is another one, or another upstream, to go to."""
    resume: Resume = "off"
    """A leg cut in mid-stream: off fails it; replay asks another replica with the same seed and goes on where the text
    was cut; continue sends what was produced as a prefix."""
    chat_continues: Literal["no", "flag", "trailing"] = "no"
    """How the server goes on with the last assistant message, for resume: continue. flag: by continue_final_message
    (vLLM, SGLang, transformers); trailing: by itself (llama.cpp); no: it cannot, and such legs fail."""
    fallback: tuple[str, ...] = ()
    """Upstreams that are asked, in this order, when this one cannot answer, or has no room."""
    max_inflight: Count = 1024
    """Choices in flight on this upstream; beyond, requests wait in the queue."""
