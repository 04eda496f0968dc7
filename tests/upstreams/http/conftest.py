"""Sockets as the gateway has them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from tests.upstreams.http.asking import Http


def pytest_asyncio_loop_factories(config: object, item: object) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run on the loop that the gateway runs on: its transports differ from asyncio's where it matters here."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def http() -> AsyncIterator[Http]:
    http = Http()
    yield http
    await http.connections.close()
    assert not http.connections.open
