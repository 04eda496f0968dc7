"""Clients of the tests."""

from __future__ import annotations

from typing import Any

import httpx

PATIENCE = 100.0
"""Seconds without a byte; no test is about that, and pytest itself gives up a little later."""


def plain_client(url: str = "", **settings: Any) -> httpx.AsyncClient:
    """A client of HTTP without TLS: the certificates for that would take it 20 ms to read, each time."""
    return httpx.AsyncClient(base_url=url, verify=False, trust_env=False, **{"timeout": PATIENCE, **settings})
