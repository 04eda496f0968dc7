"""What came out: the value that is printed, saved and compared. Its JSON form is a promise: `bench` is its version."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

Condition = str | int | float | bool | None


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)


class Spread(_Frozen):
    """Seconds. exact: percentiles are measured values (nearest rank), else they are within 0.5 %."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float
    exact: bool


class Requests(_Frozen):
    """unfinished: cut off by the end of the measurement, and counted nowhere else."""

    ok: int
    failed: int
    unfinished: int


class Tokens(_Frozen):
    """Of answered requests. by_usage, by_chunks: how many requests' completion tokens were counted so.

    cached: of those of prompts, what the server had in its cache, as far as it says.
    """

    prompt: int
    cached: int
    completion: int
    by_usage: int
    by_chunks: int


class Rates(_Frozen):
    """A second, over the whole wall time, of answered requests only."""

    requests: float
    choices: float
    completion_tokens: float


class Goodput(_Frozen):
    """Requests within all bounds, which are in milliseconds. share: of all that ended, those that failed included."""

    bounds: dict[str, float]
    requests: int
    share: float
    per_second: float


class Errors(_Frozen):
    """One kind of failure: a status, connect, cut, malformed, short or timeout. example: in words, of the first one."""

    kind: str
    count: int
    example: str


class Client(_Frozen):
    """This side. cpu_share: of one core. late_p99: seconds between due and sent; None in a closed loop."""

    nproxy: str
    python: str
    cores: int
    cpu_share: float
    late_p99: float | None


class Report(_Frozen):
    """wall_seconds: from the first request's moment to the last one's end. tail_seconds: of it, with none left to send.

    conditions: what was asked for, by option. latencies: by measure, those of which there is a value. goodput: where
    bounds were given. interrupted: the user ended it.
    """

    bench: Literal[1] = 1
    started: str
    url: str
    model: str
    conditions: dict[str, Condition]
    interrupted: bool
    wall_seconds: float
    tail_seconds: float
    requests: Requests
    choices: int
    tokens: Tokens
    per_second: Rates
    goodput: Goodput | None = None
    latencies: dict[str, Spread]
    errors: tuple[Errors, ...]
    client: Client
    warnings: tuple[str, ...]
