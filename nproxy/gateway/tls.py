"""HTTPS towards clients: what is shown to them, and how it changes while connections stand."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from typing import cast

from nproxy.config import ConfigError, Origin, Problem, Tls, load_pair, why_unusable
from nproxy.gateway.certificate import expiry
from nproxy.gateway.server import HttpServer

SHUTDOWN_SECONDS = 5.0
"""How long a client may take to agree that a connection is over."""


class Shown:
    """The certificate that clients are shown, in a context that stays while certificates come and go.

    TLS 1.2 and 1.3, HTTP/1.1 as the only protocol (ALPN), the ciphers that Python thinks good.
    expiry: when it, or the first of its chain, ends, in Unix time.
    """

    def __init__(self, tls: Tls) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        self.context.set_alpn_protocols(["http/1.1"])
        self.change(tls)

    def over(self, http: HttpServer, handshake_seconds: float) -> Callable[[], Handshake]:
        """What `create_server` has made for each accepted socket. A handshake may take so long."""
        return partial(Handshake, http, self.context, handshake_seconds)

    def change(self, tls: Tls) -> None:
        """Show another certificate from now on. Raises ConfigError, and the old one stays, where it cannot be used."""
        unusable = why_unusable(tls)  # tried elsewhere first: half a pair would be shown by nobody's wish
        if unusable is not None:
            name, reason = unusable
            raise ConfigError([Problem(Origin(str(getattr(tls, name))), (), reason)])
        load_pair(self.context, tls)
        self.expiry = expiry(tls.certificate.read_text(encoding="utf-8", errors="replace"))


class Handshake(asyncio.Protocol):
    """What an accepted socket has until TLS is agreed on: a place among the connections, and its time.

    A server that is told of `ssl` says nothing of a connection before its handshake is done: clients that never begin
    one would hold any number of files. Then TLS speaks to the connection itself, and this is over.
    """

    def __init__(self, http: HttpServer, context: ssl.SSLContext, seconds: float) -> None:
        self._http = http
        self._context = context
        self._seconds = seconds
        self._connection = http()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        plain = self._plain = cast(asyncio.Transport, transport)
        if not self._http.accepted(self._connection, plain):
            return
        self._shaking = asyncio.get_running_loop().start_tls(
            plain,
            self._connection,
            self._context,
            server_side=True,
            ssl_handshake_timeout=self._seconds,
            ssl_shutdown_timeout=SHUTDOWN_SECONDS,
        )
        # Up to its one wait here and now: a task begins a turn of the loop later, and bytes come meanwhile.
        waiter: asyncio.Future[None] = self._shaking.send(None)
        waiter.add_done_callback(self._shaken)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connection.connection_lost(exc)  # refused: there was no handshake

    def _shaken(self, _: asyncio.Future[None]) -> None:
        secured: asyncio.Transport | None = None
        try:
            self._shaking.send(None)
        except StopIteration as end:
            secured = end.value
        except OSError as error:  # no TLS, none that is spoken here, too late, or gone
            self._http.unread.no_handshake(self._plain, error)
        if secured is None or secured.get_extra_info("ssl_object") is None:  # broken off here, which is no error
            self._connection.connection_lost(None)
        else:
            self._connection.connection_made(secured)  # its first bytes come behind it on uvloop, not on asyncio's loop
