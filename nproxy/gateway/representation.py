"""What is answered with the same bytes until it changes: a page's file, a document. A client asks again by its tag.

RFC 9110 calls it a representation: the bytes and what is said of them (section 3.2).
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
    """zipped: the body under gzip, None where that saves little. policy: headers that it has beside its own."""

    body: bytes
    zipped: bytes | None
    content_type: str
    tag: ETag
    policy: Mapping[str, str]

    @classmethod
    def of(cls, body: bytes, content_type: str, policy: Mapping[str, str] | None = None) -> Self:
        """Tag and compress it, which for a long one takes a while."""
        zipped = gzip.compress(body, mtime=0)
        digest = hashlib.sha256(body).hexdigest()[:32]
        worth = len(zipped) < _WORTH_IT * len(body)
        # Weak: both forms mean the same, but are not the same bytes (RFC 9110, section 8.8.1).
        return cls(body, zipped if worth else None, content_type, ETag(digest, is_weak=True), policy or {})

    def headers(self) -> dict[str, str]:
        """What goes with it, also where it is unchanged. A client asks each time: its name stays as it changes."""
        told = {
            "ETag": f'W/"{self.tag.value}"',
            "Cache-Control": "no-cache",
            "X-Content-Type-Options": "nosniff",
            **self.policy,
        }
        return told if self.zipped is None else {**told, "Vary": "Accept-Encoding"}


async def tell(exchange: Exchange, known: Representation) -> None:
    """Answer with it, or with 304 where the client has it. Raises ClientLeft."""
    headers = known.headers()
    if _has(exchange.request, known):
        await exchange.respond(304, b"", headers, known.content_type)
    elif known.zipped is not None and takes_gzip(exchange.request.headers.get(hdrs.ACCEPT_ENCODING, "")):
        await exchange.respond(200, known.zipped, {**headers, hdrs.CONTENT_ENCODING: "gzip"}, known.content_type)
    else:
        await exchange.respond(200, known.body, headers, known.content_type)


def takes_gzip(accept_encoding: str) -> bool:
    """Whether who sends this header decodes gzip: it is named, and not with the weight 0 (RFC 9110, 12.5.3)."""
    for coding in accept_encoding.split(","):
        name, _, weight = coding.partition(";")
        if name.strip().lower() in ("gzip", "x-gzip"):
            return _NEVER.fullmatch(weight) is None
    return False


def _has(request: BaseRequest, known: Representation) -> bool:
    tags = request.if_none_match or ()
    return any(tag.value in (ETAG_ANY, known.tag.value) for tag in tags)
