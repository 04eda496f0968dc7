"""One request as it is sent: its body, and how many choices it has to bring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nproxy.cli.bench.prompts import Prompts
from nproxy.openai.jsonvalue import JSON, dumps

_SEEDS = 1 << 31
"""Seeds are taken modulo this, which every server can hold."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request. choices: as many as its answer must have."""

    body: bytes
    choices: int


@dataclass(frozen=True, slots=True)
class Form:
    """How requests are made. A line's own fields go over the defaults, what the user typed over both.

    seed: sent so that choice j of request i gets seed + i * n + j; None leaves seeds to the server.
    """

    prompts: Prompts
    typed: Mapping[str, JSON]
    defaults: Mapping[str, JSON]
    seed: int | None = None

    def ask(self, number: int) -> Ask:
        """The request of this number, counted from 0."""
        body: dict[str, JSON] = {**self.defaults, **self.prompts.fields(number), **self.typed}
        if body.get("stream"):
            body.setdefault("stream_options", {"include_usage": True})
        n = body.get("n")
        width = n if isinstance(n, int) and n > 0 else 1
        if self.seed is not None:
            body["seed"] = (self.seed + number * width) % _SEEDS
        return Ask(dumps({name: value for name, value in body.items() if value is not None}), width * _prompts_in(body))


def _prompts_in(body: Mapping[str, JSON]) -> int:
    """How many prompts a body holds: a list of token ids is one, a list of anything else one each."""
    match body.get("prompt"):
        case [str() | list(), *_] as several:
            return len(several)
    return 1
