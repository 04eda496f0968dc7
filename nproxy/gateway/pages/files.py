"""One file of a page as it leaves: bytes, type, tag, and what a browser may do with it."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from aiohttp import ETag

TYPES: Mapping[str, str] = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
"""Files with other endings are not served."""

POLICY = (
    "default-src 'self'; connect-src 'self'; img-src 'self' data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
)
"""Scripts and styles are files of their own, and a page talks to the gateway that it came from."""

_WORTH_IT = 0.9
_NEVER = re.compile(r"\s*q\s*=\s*0(\.0*)?\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class File:
    """A file's content, read once. zipped: the same under gzip, None where that saves little."""

    body: bytes
    zipped: bytes | None
    content_type: str
    tag: ETag

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read and compress a file, which for a large one takes a while. Raises OSError."""
        return cls.of(path.read_bytes(), TYPES[path.suffix])

    @classmethod
    def of(cls, body: bytes, content_type: str) -> Self:
        """The same of what is no file."""
        zipped = gzip.compress(body, mtime=0)
        digest = hashlib.sha256(body).hexdigest()[:32]
        worth = len(zipped) < _WORTH_IT * len(body)
        # Weak: both forms mean the same, but are not the same bytes (RFC 9110, section 8.8.1).
        return cls(body, zipped if worth else None, content_type, ETag(digest, is_weak=True))

    def headers(self) -> dict[str, str]:
        """What goes with it, also where it is unchanged. A browser asks each time: its name stays as it changes."""
        told = {
            "ETag": f'W/"{self.tag.value}"',
            "Cache-Control": "no-cache",
            "Content-Security-Policy": POLICY,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
        }
        return told if self.zipped is None else {**told, "Vary": "Accept-Encoding"}


def takes_gzip(accept_encoding: str) -> bool:
    """Whether who sends this header decodes gzip: it is named, and not with the weight 0 (RFC 9110, 12.5.3)."""
    for coding in accept_encoding.split(","):
        name, _, weight = coding.partition(";")
        if name.strip().lower() in ("gzip", "x-gzip"):
            return _NEVER.fullmatch(weight) is None
    return False
