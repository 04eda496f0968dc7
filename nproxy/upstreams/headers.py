"""Which headers go on, up and down."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from multidict import CIMultiDict
from pydantic import SecretStr

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
"""Meant for one connection only (RFC 9110, section 7.6.1)."""

CREDENTIALS = frozenset({"authorization", "api-key", "x-api-key", "x-goog-api-key"})

_NEVER_UP = HOP_BY_HOP | {"host", "content-length", "expect", "cookie"}
"""Written anew for the upstream; a cookie is meant for this host, not for the next."""
_NEVER_DOWN = HOP_BY_HOP | {"content-length", "set-cookie", "server", "date", "x-request-id"}

ApiKey = str | SecretStr
"""`passthrough`, `none`, or the key to send."""


def upward(
    headers: Mapping[str, str], api_key: ApiKey, drop: tuple[str, ...] = (), caller: str = ""
) -> CIMultiDict[str]:
    """What `upward_fields` gives, to look things up in and to change."""
    return CIMultiDict(upward_fields(headers, api_key, drop, caller))


def upward_fields(
    headers: Mapping[str, str], api_key: ApiKey, drop: tuple[str, ...] = (), caller: str = ""
) -> list[tuple[str, str]]:
    """The client's headers as an upstream may see them, with the credentials that `api_key` says.

    headers: a multidict's items, repeated names included. drop: further lower-case names to leave out. caller: whose
    request it is, for nproxy's own engine, which tells clients apart by their keys and is not shown those of `auth`.
    """
    if caller:
        drop = (*drop, "x-api-key")
    never = _and_named(_never_up(drop, credentials=api_key == "passthrough"), headers)
    kept = [(name, value) for name, value in headers.items() if name.lower() not in never]
    if isinstance(api_key, SecretStr):
        kept.append(("Authorization", f"Bearer {api_key.get_secret_value()}"))
    if caller:
        kept.append(("X-Api-Key", caller))
    return kept


@lru_cache(8)  # a few calls' own names
def _never_up(drop: tuple[str, ...], *, credentials: bool) -> frozenset[str]:
    never = _NEVER_UP | frozenset(drop)
    return never if credentials else never | CREDENTIALS


def downward(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """An upstream's response headers as the client may see them; which pages may read it is nproxy's to say."""
    never = _and_named(_NEVER_DOWN, headers)
    return CIMultiDict(
        (name, value)
        for name, value in headers.items()
        if (lower := name.lower()) not in never and not lower.startswith("access-control-")
    )


def _and_named(never: frozenset[str], headers: Mapping[str, str]) -> frozenset[str]:
    """With those that the headers themselves say are for this connection only."""
    if "Connection" not in headers:
        return never
    values = (value for name, value in headers.items() if name.lower() == "connection")
    return never.union(token.strip().lower() for value in values for token in value.split(","))
