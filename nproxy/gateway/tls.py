"""HTTPS towards clients: what is shown to them, and how it changes while connections stand."""

from __future__ import annotations

import ssl
from typing import Any

from nproxy.config import ConfigError, Origin, Problem, Tls, load_pair, why_unusable

SHUTDOWN_SECONDS = 5.0
"""How long a client may take to agree that a connection is over."""


class Shown:
    """The certificate that clients are shown, in a context that stays while certificates come and go.

    TLS 1.2 and 1.3, HTTP/1.1 as the only protocol (ALPN), the ciphers that Python thinks good.
    """

    def __init__(self, tls: Tls) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        self.context.set_alpn_protocols(["http/1.1"])
        self.change(tls)

    def settings(self, handshake_seconds: float) -> dict[str, Any]:
        """What `create_server` is told: a handshake may take so long, and a goodbye SHUTDOWN_SECONDS."""
        return {
            "ssl": self.context,
            "ssl_handshake_timeout": handshake_seconds,
            "ssl_shutdown_timeout": SHUTDOWN_SECONDS,
        }

    def change(self, tls: Tls) -> None:
        """Show another certificate from now on. Raises ConfigError, and the old one stays, where it cannot be used."""
        unusable = why_unusable(tls)  # tried elsewhere first: half a pair would be shown by nobody's wish
        if unusable is not None:
            name, reason = unusable
            raise ConfigError([Problem(Origin(str(getattr(tls, name))), (), reason)])
        load_pair(self.context, tls)
