"""One request as it is sent: its body, and how many choices its answer must have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nproxy.cli.bench.prompts import Prompts
from nproxy.openai.jsonvalue import JSON, dumps

_SEEDS = 1 << 31
"""Seeds are taken modulo this number, so that every server can hold them."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request. choices: how many its answer must have."""

    body: bytes
    choices: int


@dataclass(frozen=True, slots=True)
class Form:
    """How requests are made. A dataset line's own fields override the defaults, what the user typed overrides both.

    seed: sent so that choice j of request i gets seed + i * n + j; None leaves seeds to the server.
    """

    prompts: Prompts
    typed: Mapping[str, JSON]
    defaults: Mapping[str, JSON]
    seed: int | None = None

    def ask(self, number: int) -> Ask:
        """Return the request with this number, counted from 0."""
        body: dict[str, JSON] = {**self.defaults, **self.prompts.fields(number), **self.typed}
        if body.get("stream"):
            body.setdefault("stream_options", {"include_usage": True})
        n = body.get("n")
        width = n if isinstance(n, int) and n > 0 else 1
        if self.seed is not None:
            body["seed"] = (self.seed + number * width) % _SEEDS
        return Ask(dumps({name: value for name, value in body.items() if value is not None}), width * _prompts_in(body))


def _prompts_in(body: Mapping[str, JSON]) -> int:
    """Return how many prompts a body holds: a list of token ids is one, any other list one per item."""
    match body.get("prompt"):
        case [str() | list(), *_] as several:
            return len(several)
    return 1
