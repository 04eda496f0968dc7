"""HTTP clients for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx

PATIENCE = 100.0
"""Seconds without a byte after which a client gives up. No test depends on it; pytest's limit is a little higher."""


def plain_client(url: str = "", **settings: Any) -> httpx.AsyncClient:
    """An HTTP client without TLS: reading the certificates for TLS would take 20 ms for each client."""
    return httpx.AsyncClient(base_url=url, verify=False, trust_env=False, **{"timeout": PATIENCE, **settings})


async def lines_of(response: httpx.Response) -> AsyncIterator[str]:
    """The lines of an event stream, without their ends.

    `Response.aiter_lines` splits as `str.splitlines` does: within an event, too, whose text holds U+0085 or U+2028.
    """
    rest = b""
    async for part in response.aiter_bytes():
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            yield line.decode()
    if rest:
        yield rest.decode()
