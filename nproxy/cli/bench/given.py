"""The options of `nproxy bench` as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from nproxy.cli.bench.bounds import NAMES, Bound

CONCURRENCY, REQUESTS, WORDS, MAX_TOKENS = 8, 100, 128, 128
"""The defaults of options that were not given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The options as given; None if an option was not given."""

    url: str
    n: int | None
    concurrency: int | None
    rate: float | None
    burstiness: float | None
    requests: int | None
    seconds: float | None
    warmup: int
    prompt: str | None
    prompt_tokens: int | None
    shared_prefix: int | None
    dataset: Path | None
    max_tokens: int | None
    ignore_eos: bool
    stream: bool | None
    temperature: float | None
    seed: int | None
    chat: bool
    """True for chat, False for legacy completions."""
    model: str | None
    api_key: str | None
    timeout: float
    goodput: tuple[Bound, ...]
    as_json: bool
    save: Path | None
    against: Path | None
    """A report to compare with."""

    def check(self) -> None:
        """Raise click's UsageError if options exclude each other, or if one has no effect without another."""
        sources = {"--prompt": self.prompt, "--prompt-tokens": self.prompt_tokens, "--dataset": self.dataset}
        _only_one(sources)
        _only_one({"--concurrency": self.concurrency, "--rate": self.rate})
        if self.burstiness is not None and self.rate is None:
            raise click.UsageError("--burstiness needs --rate")
        if self.shared_prefix is not None and (self.prompt is not None or self.dataset is not None):
            raise click.UsageError("--shared-prefix needs --prompt-tokens")
        if (self.shared_prefix or 0) > (self.prompt_tokens or WORDS):
            raise click.UsageError("--shared-prefix is longer than the prompt (--prompt-tokens)")
        named = [bound.name for bound in self.goodput]
        if len(set(named)) < len(named):
            raise click.UsageError(f"--goodput bounds {max(named, key=named.count)} twice")
        if self.stream is False and (untold := [name for name in named if NAMES[name] != "request"]):
            raise click.UsageError(f"--goodput {untold[0]} needs streams; it cannot be measured with --no-stream")


def _only_one(given: Mapping[str, object]) -> None:
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise click.UsageError(f"{named[0]} and {named[1]} cannot be used together")
