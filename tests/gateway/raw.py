"""Raw connections to a gateway, for things that a well-behaved client library does not do."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from typing import Any

from tests.gateway.conftest import CHAT, Gateway

WITHIN = 1.0
"""Everything that belongs to a request ends within so many seconds after it."""


async def exchange(gateway: Gateway, sent: bytes, seconds: float = 5.0) -> bytes:
    """Send bytes, and read until the gateway closes the connection."""
    reader, writer = await asyncio.open_connection(*gateway.address)
    try:
        writer.write(sent)
        async with asyncio.timeout(seconds):
            return await reader.read()
    finally:
        writer.close()


def apart(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of an answer."""
    head, _, content = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in lines)}
    return int(status.split()[1]), headers, content


def post(content: bytes, *lines: str, version: str = "1.1") -> bytes:
    """A chat request with additional header lines, as bytes."""
    head = [f"POST {CHAT} HTTP/{version}", "Host: h", "Content-Type: application/json", *lines]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + content


async def open_request(gateway: Gateway, sent: dict[str, Any]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a chat request, and leave the answer unread."""
    reader, writer = await asyncio.open_connection(*gateway.address)
    content = json.dumps(sent).encode()
    writer.write(post(content, f"Content-Length: {len(content)}"))
    await writer.drain()
    return reader, writer


async def leave(writer: asyncio.StreamWriter, how: str) -> None:
    """End the connection by "close", "reset" or "half-close"."""
    if how == "reset":
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    elif how == "half-close":
        writer.write_eof()
    else:
        writer.close()


async def gauges_return(gateway: Gateway) -> None:
    """Assert that everything that requests had taken is given back within a second."""
    async with asyncio.timeout(WITHIN):
        await gateway.app.idle()
    assert (gateway.app.admission.taken, gateway.app.admission.waiting) == (0, 0)
    assert gateway.app.drives == set()
    for upstream in gateway.app.upstreams.all:
        assert upstream.gate.waiting == 0
        assert [(replica.legs, replica.choices) for replica in upstream.gate.replicas] == [(0, 0)]
    assert await gateway.metric("nproxy_inflight_requests") == 0.0
    assert await gateway.metric("nproxy_inflight_choices") == 0.0
    assert await gateway.metric('nproxy_inflight_legs{upstream="fake"}') == 0.0
