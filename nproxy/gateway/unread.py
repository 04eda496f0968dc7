"""What came on a port and became no request: no access log has it, so the log tells, seldom, as anybody can send it.

Nothing is told of what the bytes were.
"""

from __future__ import annotations

import asyncio
import logging
import ssl

from nproxy.telemetry.seldom import Seldom

_TLS = b"\x16\x03"
"""How TLS begins: a record of a handshake, whatever the version (RFC 8446, section 5.1)."""


class Unread:
    """One port's. Each line names the other end of the connection, be it a proxy's, and the port."""

    __slots__ = ("_seldom",)

    def __init__(self, log: logging.Logger) -> None:
        self._seldom = Seldom(log)

    def no_request(self, transport: asyncio.BaseTransport | None, data: bytes, wrong: str) -> None:
        """Bytes that are no HTTP. wrong: what is wrong with them, in a sentence that quotes nothing."""
        why = "This is TLS, and the port speaks plain HTTP." if data.startswith(_TLS) else wrong
        self._seldom.tell(logging.INFO, "what came is no request", _ends(transport), why)

    def no_handshake(self, transport: asyncio.BaseTransport, error: OSError) -> None:
        """No TLS came about. Who went, or said nothing, is not told of: so do those who only try the port."""
        if isinstance(error, ssl.SSLError) and error.reason:
            plain = error.reason == "HTTP_REQUEST"
            why = "This is plain HTTP, and the port speaks TLS." if plain else f"OpenSSL says {error.reason}."
            self._seldom.tell(logging.INFO, "what came is no TLS that is spoken here", _ends(transport), why)

    def too_many(self, most: int) -> None:
        """A connection beyond the limit was closed."""
        self._seldom.tell(logging.WARNING, "too many connections; new ones are closed", {"most": most})


def _ends(transport: asyncio.BaseTransport | None) -> dict[str, object]:
    """The client's address and our port, as far as the transport knows them; a Unix socket has neither."""
    found = {} if transport is None else {name: transport.get_extra_info(name) for name in ("peername", "sockname")}
    ends = {name: end for name, end in found.items() if isinstance(end, tuple)}
    told = {"client": ends["peername"][0]} if "peername" in ends else {}
    return {**told, "port": ends["sockname"][1]} if "sockname" in ends else told
