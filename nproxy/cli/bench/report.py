"""The result that is printed, saved and compared. Its JSON form is stable; `bench` is its version."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Condition = str | int | float | bool | None


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class Spread(_Frozen):
    """The distribution of a measure, in seconds.

    exact: percentiles are measured values (nearest rank), otherwise they are within 0.5 %.
    """

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float
    exact: bool


class Requests(_Frozen):
    """Counts of requests. unfinished: cut off by the end of the measurement, and counted nowhere else."""

    ok: int
    failed: int
    unfinished: int


class Tokens(_Frozen):
    """Token counts of answered requests."""

    prompt: int
    cached: int
    """Of the prompt tokens, those that the server found in its cache, as far as it reports them."""
    completion: int
    by_usage: int
    """How many requests' completion tokens were counted by usage."""
    by_chunks: int
    """How many requests' completion tokens were counted by chunks."""


class Rates(_Frozen):
    """Rates per second, over the whole wall time, of answered requests only."""

    requests: float
    choices: float
    completion_tokens: float


class Goodput(_Frozen):
    """Requests within all bounds, which are in milliseconds. share: of all that ended, including those that failed."""

    bounds: dict[str, float]
    requests: int
    share: float
    per_second: float


class Errors(_Frozen):
    """One kind of failure.

    kind: a status (with "in the stream" if it came there), connect, cut, broken, malformed, short or timeout. example:
    the text of the first failure.
    """

    kind: str
    count: int
    example: str


class Client(_Frozen):
    """This client. cpu_share: of one core.

    late_p99: seconds between due and sent; None in a closed loop.
    """

    nproxy: str
    python: str
    cores: int
    cpu_share: float
    late_p99: float | None


class Report(_Frozen):
    """The report of one measurement."""

    bench: Literal[1] = 1
    """The version of the JSON form."""
    started: str
    url: str
    model: str
    conditions: dict[str, Condition]
    """What was asked for, by option."""
    interrupted: bool
    """Whether the user ended it early."""
    wall_seconds: float
    """Seconds from the first request to the end of the last one."""
    tail_seconds: float
    """The part of them after the last request was sent."""
    requests: Requests
    choices: int
    tokens: Tokens
    per_second: Rates
    goodput: Goodput | None = None
    """Only if bounds were given."""
    latencies: dict[str, Spread]
    """By measure, those that have a value."""
    errors: tuple[Errors, ...]
    client: Client
    warnings: tuple[str, ...]
