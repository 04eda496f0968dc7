"""Static answers, such as a page's file or a document, which clients revalidate by their entity tags.

RFC 9110 calls the bytes with their metadata a representation (section 3.2).
"""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from aiohttp import ETag, hdrs
from aiohttp.helpers import ETAG_ANY
from aiohttp.web_request import BaseRequest

from nproxy.gateway.exchange import Exchange

_WORTH_IT = 0.9
_NEVER = re.compile(r"\s*q\s*=\s*0(\.0*)?\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Representation:
    """A static answer, ready to be sent."""

    body: bytes
    """The uncompressed body."""
    zipped: bytes | None
    """The body compressed by gzip; None if that saves little."""
    content_type: str
    """Its media type."""
    tag: ETag
    """Its entity tag, a hash of the body."""
    policy: Mapping[str, str]
    """Further headers."""

    @classmethod
    def of(cls, body: bytes, content_type: str, policy: Mapping[str, str] | None = None) -> Self:
        """Make a representation: hash and compress the body, which takes a while if it is long."""
        zipped = gzip.compress(body, mtime=0)
        digest = hashlib.sha256(body).hexdigest()[:32]
        worth = len(zipped) < _WORTH_IT * len(body)
        # weak, as the two forms have the same meaning but not the same bytes (RFC 9110, section 8.8.1)
        return cls(body, zipped if worth else None, content_type, ETag(digest, is_weak=True), policy or {})

    def headers(self) -> dict[str, str]:
        """Return its headers, also those of a 304. Clients revalidate each time, as its URL stays when it changes."""
        headers = {
            "ETag": f'W/"{self.tag.value}"',
            "Cache-Control": "no-cache",
            "X-Content-Type-Options": "nosniff",
            **self.policy,
        }
        return headers if self.zipped is None else {**headers, "Vary": "Accept-Encoding"}


async def respond_with(exchange: Exchange, known: Representation) -> None:
    """Answer with a representation, or with 304 if the client has it. Raises ClientLeft."""
    headers = known.headers()
    if _has(exchange.request, known):
        await exchange.respond(304, b"", headers, known.content_type)
    elif known.zipped is not None and takes_gzip(exchange.request.headers.get(hdrs.ACCEPT_ENCODING, "")):
        await exchange.respond(200, known.zipped, {**headers, hdrs.CONTENT_ENCODING: "gzip"}, known.content_type)
    else:
        await exchange.respond(200, known.body, headers, known.content_type)


def takes_gzip(accept_encoding: str) -> bool:
    """Whether an Accept-Encoding header accepts gzip: names it, and not with weight 0 (RFC 9110, 12.5.3)."""
    for coding in accept_encoding.split(","):
        name, _, weight = coding.partition(";")
        if name.strip().lower() in ("gzip", "x-gzip"):
            return _NEVER.fullmatch(weight) is None
    return False


def _has(request: BaseRequest, known: Representation) -> bool:
    tags = request.if_none_match or ()
    return any(tag.value in (ETAG_ANY, known.tag.value) for tag in tags)
