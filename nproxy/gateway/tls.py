"""HTTPS for clients: the gateway's certificate, and its replacement while connections are open."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import cast

from nproxy.config import ConfigError, Origin, Problem, Tls, certificate_expiry, load_pair, why_unusable
from nproxy.gateway.server import HttpServer

log = logging.getLogger("nproxy.gateway")

SHUTDOWN_SECONDS = 5.0
"""How long a client may take to complete the TLS shutdown."""


class ServedCertificate:
    """The certificate that is shown to clients, in an SSL context that stays when the certificate is replaced.

    It allows TLS 1.2 and 1.3, HTTP/1.1 as the only protocol (ALPN), and Python's default ciphers.
    expiry: the earliest expiry in the certificate chain, in Unix time.
    """

    def __init__(self, tls: Tls) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        self.context.set_alpn_protocols(["http/1.1"])
        self.change(tls)

    def over(self, http: HttpServer, handshake_seconds: float) -> Callable[[], Handshake]:
        """Return a factory of protocols for `create_server`. handshake_seconds: how long a handshake may take."""
        return partial(Handshake, http, self.context, handshake_seconds)

    def change(self, tls: Tls) -> None:
        """Use another certificate from now on. Raises ConfigError if it cannot be used; then the old one stays."""
        unusable = why_unusable(tls)  # tried in another context first: this one must not end with half a pair
        if unusable is not None:
            name, reason = unusable
            raise ConfigError([Problem(Origin(str(getattr(tls, name))), (), reason)])
        load_pair(self.context, tls)
        self.expiry = certificate_expiry(tls.certificate.read_text(encoding="utf-8", errors="replace"))
        if self.expiry is not None and self.expiry <= time.time():
            ended = datetime.fromtimestamp(self.expiry, UTC).isoformat()
            log.warning("clients will refuse the certificate: it has expired", extra={"fields": {"expired": ended}})


class Handshake(asyncio.Protocol):
    """The protocol of an accepted socket during its TLS handshake: it counts as a connection, and has a time limit.

    `create_server(ssl=...)` does not report a connection before its handshake is done, so clients that never begin one
    could hold any number of file descriptors. After the handshake, the Connection takes over.
    """

    def __init__(self, http: HttpServer, context: ssl.SSLContext, seconds: float) -> None:
        self._http = http
        self._context = context
        self._seconds = seconds
        self._connection = http()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake, unless the connection is refused."""
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
        # Run it up to its only await now: a task would start in the loop's next iteration; bytes may come meanwhile.
        waiter: asyncio.Future[None] = self._shaking.send(None)
        waiter.add_done_callback(self._shaken)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Pass on the end of a connection without a handshake."""
        self._connection.connection_lost(exc)  # the connection was refused without a handshake

    def _shaken(self, _: asyncio.Future[None]) -> None:
        secured: asyncio.Transport | None = None
        try:
            self._shaking.send(None)
        except StopIteration as end:
            secured = end.value
        except OSError as error:  # not TLS, no common version or cipher, too late, or disconnected
            self._http.connection_log.no_handshake(self._plain, error)
        if secured is None or secured.get_extra_info("ssl_object") is None:  # aborted by this side: no error
            self._connection.connection_lost(None)
        else:
            self._connection.connection_made(secured)  # on uvloop, unlike asyncio, data follows this
