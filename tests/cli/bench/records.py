"""Requests that have ended, as the measurement would tell of them."""

from __future__ import annotations

from itertools import pairwise

from nproxy.cli.bench.answer import Failure, Record, Spoken
from nproxy.openai.usage import Usage


def spoken(*times: float, finished: float | None = None) -> Spoken:
    """A choice with text at these times."""
    gaps = [after - before for before, after in pairwise(times)]
    end = times[-1] if finished is None else finished
    return Spoken(times[0], times[-1], gaps, "stop", end)


def record(*choices: Spoken, seconds: float = 1.0, completion: int | None = None, prompt: int = 10) -> Record:
    """An answered request; completion: tokens by usage."""
    usage = None if completion is None else Usage(prompt, completion)
    return Record(0.0, seconds, None, choices, len(choices), usage)


def failed(kind: str, words: str = "", late: float = 0.0) -> Record:
    """A request without an answer."""
    return Record(late, 1.0, Failure(kind, words))
