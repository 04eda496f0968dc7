"""The formats of metrics: Prometheus' text format, or OpenMetrics, which has exemplars."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics


@dataclass(frozen=True, slots=True)
class Format:
    """A format of metrics: its content type, and what writes it."""

    content_type: str
    write: Callable[[CollectorRegistry], bytes]


TEXT = Format("text/plain; version=0.0.4; charset=utf-8", generate_latest)
OPENMETRICS = Format("application/openmetrics-text; version=1.0.0; charset=utf-8", openmetrics.generate_latest)

_QUALITY = re.compile(r"q=(0(\.\d{0,3})?|1(\.0{0,3})?)")
_READ = frozenset({"1.0.0", "0.0.1"})
"""Versions of OpenMetrics that are accepted from clients: nothing that is written here differs between them."""


def negotiated(accept: str) -> Format:
    """Return OpenMetrics if an Accept header names it and does not prefer text, else text (RFC 9110, section 12.5.1).

    The library's own choice, `choose_encoder`, ignores `q`, and fails for a version that is not a number.
    """
    text = rich = 0.0
    for part in accept.lower().split(","):
        media, *parameters = (word.strip() for word in part.split(";"))
        quality = next((float(found[1]) for one in parameters if (found := _QUALITY.fullmatch(one))), 1.0)
        version = next((one.removeprefix("version=") for one in parameters if one.startswith("version=")), "1.0.0")
        if media == "text/plain":
            text = max(text, quality)
        elif media == "application/openmetrics-text" and version in _READ:
            rich = max(rich, quality)
    return OPENMETRICS if rich and rich >= text else TEXT
