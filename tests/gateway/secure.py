"""HTTPS on loopback: certificates of a made-up authority, and a client that takes its handshake in steps."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any

import trustme

from nproxy.gateway.serve import Running
from tests.fakes.upstream import FakeUpstream
from tests.gateway.conftest import upstream_settings

HEALTH = b"GET /health HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"


def put(folder: Path, certificate: trustme.LeafCert, key: trustme.LeafCert | None = None) -> dict[str, str]:
    """Write a pair of files; the key of another certificate where one is given."""
    chain, private = folder / "chain.pem", folder / "key.pem"
    chain.write_bytes(b"".join(part.bytes() for part in certificate.cert_chain_pems))
    private.write_bytes((key or certificate).private_key_pem.bytes())
    return {"certificate": str(chain), "key": str(private)}


def secure(authority: trustme.CA, upstream: FakeUpstream, folder: Path) -> dict[str, Any]:
    """Settings of a gateway that speaks TLS on a free port."""
    tls = put(folder, authority.issue_cert("127.0.0.1"))
    return {"listen": {"port": 0, "tls": tls}, "upstreams": [upstream_settings(upstream)]}


def trust(authority: trustme.CA) -> ssl.SSLContext:
    """What a client needs to trust it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(context)
    return context


def address(gateway: Running) -> tuple[str, int]:
    host, port = gateway.url.removeprefix("https://").rsplit(":", 1)
    return host, int(port)


class Stepping:
    """A client whose handshake goes on when it is told to. Use `connect`."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="127.0.0.1")
        self._step()
        self._hello = self._outgoing.read()

    @classmethod
    async def connect(cls, context: ssl.SSLContext, where: tuple[str, int], *, eager: bool = False) -> Stepping:
        """Open the connection. eager: the hello is sent before anybody on this loop can accept it; else nothing is."""
        client = cls(context)
        sock = socket.create_connection(where)
        if eager:
            sock.sendall(client._hello)
            client._hello = b""
        client.reader, client.writer = await asyncio.open_connection(sock=sock)
        return client

    def half_hello(self) -> None:
        """Begin the handshake, and leave it there."""
        half = len(self._hello) // 2
        self.writer.write(self._hello[:half])
        self._hello = self._hello[half:]

    async def shake(self) -> None:
        """Bring the handshake to its end. Its last bytes are kept, to come with what is sent first.

        Raises ssl.SSLError where the other side, or its certificate, is no good; it is told so.
        """
        self.writer.write(self._hello)
        try:
            while not self._step():
                await self._take()
        except ssl.SSLError:
            self.writer.write(self._outgoing.read())
            raise

    async def ask(self, request: bytes = HEALTH) -> bytes:
        """Send a request; give what comes until the connection ends."""
        self.tls.write(request)
        self.writer.write(self._outgoing.read())
        answer = b""
        while True:
            try:
                part = self.tls.read(1 << 16)
                if not part:
                    return answer
                answer += part
            except ssl.SSLWantReadError:
                await self._take()
            except ssl.SSLZeroReturnError:
                return answer

    def _step(self) -> bool:
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    async def _take(self) -> None:
        async with asyncio.timeout(30):
            data = await self.reader.read(1 << 16)
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
