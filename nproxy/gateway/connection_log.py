"""Logs connections whose data is not a request, because the access log does not have them.

It logs seldom, because anybody can cause such lines. The data itself is not logged.
"""

from __future__ import annotations

import asyncio
import logging
import ssl

from nproxy.gateway.proxies import client_address
from nproxy.telemetry.seldom import Seldom

_TLS = b"\x16\x03"
"""The first bytes of TLS of any version: a handshake record (RFC 8446, section 5.1)."""


class ConnectionLog:
    """The log of one port. Each line has the peer's address, which may be a proxy's, and the port."""

    __slots__ = ("_seldom",)

    def __init__(self, log: logging.Logger) -> None:
        self._seldom = Seldom(log)

    def no_request(self, transport: asyncio.BaseTransport | None, data: bytes, wrong: str, id: str | None) -> None:
        """Log that data is not HTTP. wrong: the reason, as a sentence that quotes nothing of it. id: of the answer to
        nothing else; None if it is in the body of a request.
        """
        why = "This is TLS, but the port expects plain HTTP." if data.startswith(_TLS) else wrong
        fields = ({} if id is None else {"request_id": id}) | _ends(transport)
        self._seldom.tell(logging.INFO, "received data is not a request", fields, why)

    def no_handshake(self, transport: asyncio.BaseTransport, error: OSError) -> None:
        """Log that a TLS handshake failed.

        Clients that disconnect or send nothing are not logged: port checks do the same.
        """
        if isinstance(error, ssl.SSLError) and error.reason:
            plain = error.reason == "HTTP_REQUEST"
            why = "This is plain HTTP, but the port expects TLS." if plain else f"OpenSSL reports {error.reason}."
            self._seldom.tell(logging.INFO, "TLS handshake failed", _ends(transport), why)

    def too_many(self, most: int) -> None:
        """Log that a connection beyond the limit was closed."""
        self._seldom.tell(logging.WARNING, "too many connections; new ones are closed", {"most": most})


def _ends(transport: asyncio.BaseTransport | None) -> dict[str, object]:
    """Return the peer's address and the local port, as far as they are known; a Unix socket has neither."""
    found = {} if transport is None else {name: transport.get_extra_info(name) for name in ("peername", "sockname")}
    ends = {name: end for name, end in found.items() if isinstance(end, tuple)}
    address: dict[str, object] = {}
    if "peername" in ends:
        address["client"] = client_address(ends["peername"][0], (), ())
    if "sockname" in ends:
        address["port"] = ends["sockname"][1]
    return address
