"""Which headers are passed on to upstreams and back to clients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import product

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
"""They are meant for one connection only (RFC 9110, section 7.6.1)."""

CREDENTIALS = frozenset({"authorization", "api-key", "x-api-key", "x-goog-api-key"})

_NEVER_UP = HOP_BY_HOP | {"host", "content-length", "expect", "cookie"}
"""Not passed to upstreams: nproxy writes its own, and a cookie is meant for this host, not for the next."""
_FOR_ORIGINS = frozenset({"alt-svc", "clear-site-data", "refresh", "set-cookie", "strict-transport-security"})
"""What a browser would apply to everything at the gateway's address."""
_NEVER_DOWN = HOP_BY_HOP | _FOR_ORIGINS | {"content-length", "server", "date", "x-request-id"}

ApiKey = str | SecretStr
"""`passthrough`, `none`, or the key to send."""


def upward(
    headers: Mapping[str, str], api_key: ApiKey, drop: tuple[str, ...] = (), caller: str = ""
) -> CIMultiDict[str]:
    """Like `upward_fields`, as a multidict that can be searched and changed."""
    return CIMultiDict(upward_fields(headers, api_key, drop, caller))


def upward_fields(
    headers: Mapping[str, str], api_key: ApiKey, drop: tuple[str, ...], caller: str
) -> list[tuple[str, str]]:
    """The client's headers as an upstream may see them, with the credentials that `api_key` demands.

    headers: a multidict, which may hold a name several times. drop: further lower-case names to leave out. caller:
    whose request it is; "" for none. Only nproxy's own engine is told: it tells clients apart by their keys, but does
    not get those of `auth`.
    """
    if caller:
        drop = (*drop, "x-api-key")
    never = _and_named(_never_up(drop, credentials=api_key == "passthrough"), headers)
    kept = [field for field in headers.items() if field[0].lower() not in never]
    if isinstance(api_key, SecretStr):
        kept.append(("Authorization", f"Bearer {api_key.get_secret_value()}"))
    if caller:
        kept.append(("X-Api-Key", caller))
    return kept


@lru_cache(8)  # there are few different sets of names
def _never_up(drop: tuple[str, ...], *, credentials: bool) -> frozenset[str]:
    never = _NEVER_UP.union(drop, () if credentials else CREDENTIALS)
    return frozenset(spelling for name in never for spelling in _spellings(name))


def _spellings(name: str) -> Iterator[str]:
    """Yield what a server may take for the same name: in the variables of CGI and WSGI, `_` and `-` are the same."""
    return map("".join, product(*("-_" if letter == "-" else letter for letter in name)))


def downward(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """An upstream's response headers as the client may see them.

    Access-Control headers are left out, because nproxy itself decides which pages may read the answer.
    """
    never = _and_named(_NEVER_DOWN, headers)
    return CIMultiDict(
        (name, value)
        for name, value in headers.items()
        if (lower := name.lower()) not in never and not lower.startswith("access-control-")
    )


def _and_named(never: frozenset[str], headers: Mapping[str, str]) -> frozenset[str]:
    """Add the names that the `Connection` header marks as meant for this connection only."""
    if "Connection" not in headers:
        return never
    values = (value for name, value in headers.items() if name.lower() == "connection")
    return never.union(token.strip().lower() for value in values for token in value.split(","))
