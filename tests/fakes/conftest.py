"""The fakes are tested on asyncio's own loop and on the gateway's: their transports differ."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import uvloop


def pytest_asyncio_loop_factories(config: object, item: object) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Both loops."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
