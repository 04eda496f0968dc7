"""A gateway that exports its traces, and a collector whose spans are held to the guide's page and to its promises."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nproxy
from tests.fakes.collector import Collector
from tests.fakes.upstream import FakeUpstream
from tests.gateway.conftest import Gateway, gateway_for, upstream_settings
from tests.witness import SECRET

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PAGE = set(
    re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", (Path(nproxy.__file__).parents[1] / "docs/guides/tracing.md").read_text())
)
PARENT = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "a=b"}


@asynccontextmanager
async def traced(
    upstream: FakeUpstream, collector: Collector, telemetry: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[Gateway]:
    """A gateway that exports; when the block is left, it has."""
    told = {"otlp_endpoint": collector.url, **(telemetry or {})}
    async with gateway_for({"upstreams": [upstream_settings(upstream, **settings)], "telemetry": told}) as gateway:
        yield gateway


@asynccontextmanager
async def witnessed() -> AsyncIterator[Collector]:
    """A collector that in the end has heard no secret, and nothing that docs/guides/tracing.md does not list."""
    async with Collector() as collector:
        yield collector
    for body_sent in collector.raw:
        assert SECRET.search(body_sent.decode("latin-1")) is None
    for span in collector.spans:
        names = {*span.attributes, *(name for event, attributes in span.events for name in (event, *attributes))}
        assert names - PAGE == set(), "docs/guides/tracing.md lists them all"
