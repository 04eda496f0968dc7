"""Clients of the tests."""

from __future__ import annotations

from typing import Any

import httpx


def plain_client(url: str = "", **settings: Any) -> httpx.AsyncClient:
    """A client of HTTP without TLS: the certificates for that would take it 20 ms to read, each time."""
    return httpx.AsyncClient(base_url=url, verify=False, trust_env=False, **{"timeout": 30, **settings})
