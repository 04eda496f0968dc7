"""How long an upstream asks a client to wait, in any of the ways in which it may say so."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_DECIMAL = re.compile(r" *\d{1,18}(?:\.\d{0,18})? *", re.ASCII)


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Seconds to wait by `retry-after-ms` (milliseconds) or `retry-after` (seconds, or an HTTP date: RFC 9110 10.2.3).

    headers: looked up by lower-case names, so it must be a case-insensitive mapping. None if nothing was said or it
    cannot be read; never negative.
    """
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    value = headers.get("retry-after")
    seconds = _number(value)
    if seconds is not None or value is None:
        return seconds
    try:
        at = parsedate_to_datetime(value)
    except (ValueError, OverflowError):  # years, hours or zones out of range
        return None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return max(0.0, (at - (now or datetime.now(UTC))).total_seconds())


_NUMBER = r"\d{1,9}(?:\.\d{1,20})?"
_UNIT = r"(?:ms|msecs?|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?)(?![a-z])"
_SAID = re.compile(
    rf"""
    (?:(?:try\ again|retry(?:\ again)?)\ (?:in|after)|please\ wait)\ (?:about\ )?(?:
        (?P<parts> (?: {_NUMBER}\ ?{_UNIT} (?:,?\ ?(?:and\ )?) ){{1,4}} )
        | (?P<seconds> {_NUMBER}) (?![\d.]*(?:\ ?[a-z%]|\ ?[-:/,]\ ?\d))  # no date, time, range or share
    )
    | \\?"retryDelay\\?"\ *:\ *\\?"(?P<delay>{_NUMBER}s)\\?"
    """.encode(),
    re.IGNORECASE | re.VERBOSE,
)
"""As hosted servers word it: "Please try again in 6m0.5s", "... in 20ms" (OpenAI, Groq), "please try again after 1
seconds" (Moonshot), "Please retry after 6 seconds" (Azure), google.rpc.RetryInfo's "retryDelay" (Gemini).
"""
_PART = re.compile(rf"({_NUMBER}) ?({_UNIT})", re.IGNORECASE)
_UNIT_SECONDS = (("ms", 0.001), ("milli", 0.001), ("m", 60.0), ("s", 1.0), ("h", 3600.0), ("d", 86400.0))
"""Seconds by the beginning of a unit's name; the first that fits counts."""


def wait_in(body: bytes) -> float | None:
    """Seconds to wait by the text of an error, to be used if no header says it; None if the text does not either."""
    found = _SAID.search(body)
    if found is None:
        return None
    if found["seconds"] is not None:
        return float(found["seconds"])
    parts = _PART.findall((found["parts"] or found["delay"]).decode())
    return sum(float(number) * _seconds(unit.lower()) for number, unit in parts)


def _seconds(unit: str) -> float:
    return next(seconds for begins, seconds in _UNIT_SECONDS if unit.startswith(begins))


def _number(text: str | None) -> float | None:
    """A decimal number that is not negative; None for anything else, including what only Python takes for a number."""
    return float(text) if text is not None and _DECIMAL.fullmatch(text) else None
