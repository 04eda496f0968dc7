"""The measures of an answered request, as a table: each with its name, its title, and its values in seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from nproxy.cli.bench.answer import Record


class Measure(NamedTuple):
    """One measure.

    name: in JSON. title: in the table. of: returns the seconds of one request; nothing if it cannot tell.
    """

    name: str
    title: str
    of: Callable[[Record], Iterable[float]]


def _first_of_all(record: Record) -> Iterable[float]:
    firsts = list(_firsts(record))
    return [min(firsts)] if firsts else []


def _firsts(record: Record) -> Iterable[float]:
    return (choice.first for choice in record.choices if choice.first is not None)


def _gaps(record: Record) -> Iterable[float]:
    return (gap for choice in record.choices for gap in choice.gaps)


def _per_token(record: Record) -> Iterable[float]:
    """Return the choices' seconds from first to last text, over their tokens without the first of each.

    For n=1 this is vLLM's TPOT.
    """
    spoke = [choice for choice in record.choices if choice.first is not None and choice.last is not None]
    tokens = tokens_of(record) - len(spoke)
    if not spoke or tokens < 1:
        return []
    return [sum((choice.last or 0.0) - (choice.first or 0.0) for choice in spoke) / tokens]


def _ends(record: Record) -> Iterable[float]:
    return (choice.finished for choice in record.choices if choice.finished is not None)


def _skew(record: Record) -> Iterable[float]:
    ends = list(_ends(record))
    return [max(ends) - min(ends)] if len(ends) > 1 else []


def tokens_of(record: Record) -> int:
    """Return the completion tokens by usage; without usage, the number of chunks that brought text."""
    return record.texts if record.usage is None else record.usage.completion


MEASURES = (
    Measure("time_to_first_token", "first token, of a request", _first_of_all),
    Measure("time_to_first_token_per_choice", "first token, of each choice", _firsts),
    Measure("inter_token", "between tokens of a choice", _gaps),
    Measure("time_per_output_token", "per output token, of a request", _per_token),
    Measure("choice", "end of each choice", _ends),
    Measure("request", "end of a request", lambda record: [record.seconds]),
    Measure("sibling_skew", "first choice's end to the last's", _skew),
)

LATE = "late"
"""Beside these, for every request: the seconds between when it was due and when it was sent."""
