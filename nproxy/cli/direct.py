"""An HTTP client that asks one server directly, regardless of proxies in the environment, as the gateway does."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator

import httpx

from nproxy.cli.reasons import ENDED_EARLY, NOT_HTTP, reason
from nproxy.cli.target import Target


@contextlib.contextmanager
def asking(target: Target, seconds: float) -> Iterator[httpx.Client]:
    """Open a client that sends the key and gives up if nothing arrives for so many seconds.

    It trusts the system's certificate authorities, or those of SSL_CERT_FILE, as everywhere in nproxy: httpx would
    bring its own.
    """
    # A new connection for each question: one that the server has closed in the meantime would fail the next question.
    limits = httpx.Limits(max_keepalive_connections=0)
    trusted = ssl.create_default_context()
    transport = httpx.HTTPTransport(verify=trusted, uds=target.socket, trust_env=False, limits=limits)
    with httpx.Client(transport=transport, headers=target.headers, timeout=seconds, trust_env=False) as http:
        yield http


def why(error: httpx.HTTPError) -> str:
    """Return the reason why there is no answer, or why it ended early."""
    if isinstance(error, httpx.RemoteProtocolError):
        return ENDED_EARLY if str(error).startswith(("peer closed", "Server disconnected")) else NOT_HTTP
    return reason(error)
