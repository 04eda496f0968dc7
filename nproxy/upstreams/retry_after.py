"""How long an upstream asks us to wait, in any of the ways it may say so."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from math import isfinite


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Seconds to wait by `retry-after-ms` (milliseconds) or `retry-after` (seconds, or an HTTP date: RFC 9110 10.2.3).

    headers: looked up by lower-case names, so it is to be a case-insensitive mapping. None where nothing was said or
    it cannot be read; never negative.
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
    except (ValueError, OverflowError):  # of years, hours or zones beyond all measure
        return None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return max(0.0, (at - (now or datetime.now(UTC))).total_seconds())


_SAID = re.compile(
    rb"(?:try again|retry(?: again)?) (?:in|after) ((?:\d{1,9}(?:\.\d{1,9})? ?[a-z]*){1,4})"
    rb"|\"retryDelay\": *\"(\d{1,9}(?:\.\d{1,9})?s)\"",
    re.IGNORECASE,
)
"""As hosted servers word it: "Please try again in 6m0.5s", "... in 20ms" (OpenAI, Groq), "please try again after 1
seconds" (Moonshot), "Please retry after 6 seconds" (Azure), google.rpc.RetryInfo's "retryDelay" (Gemini)."""
_PART = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?([a-z]*)", re.IGNORECASE)
_UNITS = (("milli", 0.001), ("ms", 0.001), ("m", 60.0), ("s", 1.0), ("h", 3600.0), ("day", 86400.0))
"""Seconds by how a unit begins; the first that fits counts."""


def said_in(body: bytes) -> float | None:
    """Seconds to wait by the words of an error, where no header tells; None where they say nothing of it."""
    found = _SAID.search(body)
    if found is None:
        return None
    parts = [(float(number), _factor(unit)) for number, unit in _PART.findall((found[1] or found[2]).decode())]
    return sum(number * factor for number, factor in parts if factor) if parts[0][1] else None


def _factor(unit: str) -> float | None:
    """Seconds of a unit; None where it is none."""
    return 1.0 if not unit else next((seconds for begins, seconds in _UNITS if unit.lower().startswith(begins)), None)


def _number(text: str | None) -> float | None:
    try:
        number = float(text) if text is not None else None
    except ValueError:
        return None
    return number if number is not None and isfinite(number) and number >= 0 else None
