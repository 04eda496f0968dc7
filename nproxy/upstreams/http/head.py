"""The head of a request as bytes, and the parts that heads are made of, those of answers too."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Self

from aiohttp import hdrs
from yarl import URL

_WITHOUT_BODIES = frozenset({hdrs.METH_GET, hdrs.METH_HEAD, hdrs.METH_OPTIONS, hdrs.METH_TRACE})
"""Methods whose requests need not say that they have no body (RFC 9110, section 8.6)."""

_NONE: Sequence[tuple[str, str]] = ()


class Fields:
    """Header fields in the form in which they are sent, reusable for many requests.

    text: their lines, `count` of them. sized: they include Content-Length.
    """

    __slots__ = ("count", "sized", "text")

    def __init__(self, items: Collection[tuple[str, str]], *, sized: bool = False) -> None:
        self.text = lines(items)
        self.count = len(items)
        self.sized = sized

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Self:
        """The fields of a multidict, which may hold a name several times."""
        return cls(headers.items(), sized=hdrs.CONTENT_LENGTH in headers)


def request_head(
    method: str,
    url: URL,
    fields: Fields,
    size: int | None,
    *,
    via: str,
    host: str | None = None,
    own: Sequence[tuple[str, str]] = _NONE,
) -> bytes:
    """The request line and all header fields, with the empty line behind them.

    size: bytes of the body; None for a chunked body, unless the fields state its length. via: this gateway's entry in
    `Via`, which goes behind earlier ones. host: replaces the URL's host; None to keep it. own: fields of this request
    only, sent behind the shared ones.
    Raises ValueError if a field contains characters that would end its line.
    """
    begin = f"{method} {url.raw_path_qs} HTTP/1.1\r\nHost: {host or url.host_port_subcomponent}\r\n"
    head = f"{begin}{fields.text}{lines(own)}Via: {via}\r\n"
    count = 3 + fields.count + len(own)
    if not fields.sized:
        if size is None:
            head, count = f"{head}Transfer-Encoding: chunked\r\n", count + 1
        elif size or method not in _WITHOUT_BODIES:
            head, count = f"{head}Content-Length: {size}\r\n", count + 1
    return ended(head, count)


def lines(items: Iterable[tuple[str, str]]) -> str:
    """Header fields as lines of a head, unchecked."""
    joined = "\r\n".join(map(": ".join, items))  # names are of a subclass of str, whose format f-strings would call
    return f"{joined}\r\n" if joined else ""


def ended(head: str, count: int) -> bytes:
    """A head of so many lines as bytes, with the empty line behind it.

    Raises ValueError if a field contains what would end its line. Bytes that are not UTF-8 are sent as they came.
    """
    if not head.count("\r") == head.count("\n") == count or "\0" in head:
        raise ValueError("a header holds what would end its line")
    return f"{head}\r\n".encode("utf-8", "surrogateescape")
