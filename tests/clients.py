"""HTTP clients for tests."""

from __future__ import annotations

from typing import Any

import httpx

PATIENCE = 100.0
"""Seconds without a byte after which a client gives up. No test depends on it; pytest's limit is a little higher."""


def plain_client(url: str = "", **settings: Any) -> httpx.AsyncClient:
    """An HTTP client without TLS: reading the certificates for TLS would take 20 ms for each client."""
    return httpx.AsyncClient(base_url=url, verify=False, trust_env=False, **{"timeout": PATIENCE, **settings})
