"""A client that asks one server directly, whatever proxies the environment names, as the gateway does."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator

import httpx

from nproxy.cli.reasons import ENDED_EARLY, NOT_HTTP, reason
from nproxy.cli.target import Target


@contextlib.contextmanager
def asking(target: Target, seconds: float) -> Iterator[httpx.Client]:
    """A client that shows the key and gives up where nothing comes for so many seconds.

    The authorities that it trusts are the system's, or those of SSL_CERT_FILE, as everywhere in nproxy: httpx would
    bring its own.
    """
    # a connection for each question: one that the server closed in the meantime would fail the next question
    limits = httpx.Limits(max_keepalive_connections=0)
    trusted = ssl.create_default_context()
    transport = httpx.HTTPTransport(verify=trusted, uds=target.socket, trust_env=False, limits=limits)
    with httpx.Client(transport=transport, headers=target.headers, timeout=seconds, trust_env=False) as http:
        yield http


def why(error: httpx.HTTPError) -> str:
    """Why there is no answer, or no more of it."""
    if isinstance(error, httpx.RemoteProtocolError):
        return ENDED_EARLY if str(error).startswith(("peer closed", "Server disconnected")) else NOT_HTTP
    return reason(error)
