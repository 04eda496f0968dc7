"""CORS: which pages of other origins may read the answers (Fetch standard).

Keys are sent in headers that a page sets itself. Credentials that a browser adds (cookies, certificates) are never
allowed, so `*` is as safe as a list of origins.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

ANY = "*"
ALLOWED = "Access-Control-Allow-Origin"
PREFLIGHT_SECONDS = 600
METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"

_HEADER_NAMES = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+([ \t]*,[ \t]*[!#$%&'*+.^_`|~0-9A-Za-z-]+)*")
_TOLD = ("x-", "retry-after")
_NOTHING: Mapping[str, str] = {}


_OWN_SITES = frozenset({"none", "same-origin"})


def sent_by_another_page(headers: Mapping[str, str]) -> bool:
    """Whether a page of another origin has sent a request, by what its browser says.

    Browsers send Sec-Fetch-Site over HTTPS and to loopback addresses only (Fetch Metadata), and Origin whenever a page
    sends anything.
    """
    if (site := headers.get("Sec-Fetch-Site")) is not None:
        return site not in _OWN_SITES
    origin = headers.get("Origin")
    return origin is not None and origin.partition("://")[2] != headers.get("Host", "").lower()


def is_no_name(host: str) -> bool:
    """Whether a Host header is an IP address or localhost: a name might be its owner's trick (DNS rebinding)."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or name.endswith(".localhost") or bool(ip_address(name))
    except ValueError:
        return False


class Cors:
    """The origins that are allowed. If there are none, no answer has CORS headers."""

    __slots__ = ("_any", "_origins")

    def __init__(self, origins: Collection[str]) -> None:
        self._origins = frozenset(origins)
        self._any = ANY in self._origins

    def answer(self, origin: str | None) -> Mapping[str, str]:
        """Return the CORS headers of an answer to a page of this origin, with `Vary` if they depend on the origin."""
        if self._any:
            return {ALLOWED: ANY}
        if not self._origins:
            return _NOTHING
        allowed = {ALLOWED: origin} if origin is not None and origin in self._origins else {}
        return {**allowed, "Vary": "Origin"}

    def allows(self, origin: str | None) -> bool:
        """Whether pages of this origin may read answers."""
        return self._any or (origin is not None and origin in self._origins)

    def preflight(self, headers: Mapping[str, str]) -> Mapping[str, str] | None:
        """Return the headers that answer a preflight; None if an OPTIONS request is none, or its origin not allowed."""
        if "Access-Control-Request-Method" not in headers:
            return None
        origin, asked = headers.get("Origin"), headers.get("Access-Control-Request-Headers", "")
        if origin is None or not self.allows(origin):
            return None
        answer = {"Access-Control-Allow-Methods": METHODS, "Access-Control-Max-Age": str(PREFLIGHT_SECONDS)}
        if _HEADER_NAMES.fullmatch(asked):  # `*` would not include Authorization
            answer["Access-Control-Allow-Headers"] = asked
        return answer


def exposed(names: Iterable[str]) -> str:
    """Return the names of headers that a page may read, in addition to those that it always may."""
    return ", ".join(name for name in names if name.lower().startswith(_TOLD))
