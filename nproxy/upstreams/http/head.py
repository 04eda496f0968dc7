"""The head of a request as bytes, and the parts that heads are made of, those of answers too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Self

from aiohttp import hdrs
from yarl import URL

_WITHOUT_BODIES = frozenset({hdrs.METH_GET, hdrs.METH_HEAD, hdrs.METH_OPTIONS, hdrs.METH_TRACE})
"""Methods whose requests need not say that they have no body (RFC 9110, section 8.6)."""

_NONE: Sequence[tuple[str, str]] = ()


class Fields:
    """Header fields in the form in which they are sent, reusable for many requests.

    lines: one for each of them, without its end. sized: they include Content-Length.
    """

    __slots__ = ("lines", "sized")

    def __init__(self, items: Iterable[tuple[str, str]], *, sized: bool = False) -> None:
        self.lines = [*lines(items)]
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
    head = [
        f"{method} {url.raw_path_qs} HTTP/1.1",
        f"Host: {host or url.host_port_subcomponent}",
        *fields.lines,
        *lines(own),
        f"Via: {via}",
    ]
    if not fields.sized:
        if size is None:
            head.append("Transfer-Encoding: chunked")
        elif size or method not in _WITHOUT_BODIES:
            head.append(f"Content-Length: {size}")
    return joined(head)


def lines(items: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Header fields as lines of a head, without the lines' ends."""
    return map(": ".join, items)  # names are of a subclass of str, whose format f-strings would call


def joined(head: Sequence[str]) -> bytes:
    """The lines of a head as bytes, with the empty line behind them.

    Raises ValueError if a line contains what would end it. Bytes that are not UTF-8 are sent as they came.
    """
    text = "".join(head)
    if "\r" in text or "\n" in text or "\0" in text:
        raise ValueError("a header holds what would end its line")
    return "\r\n".join((*head, "", "")).encode("utf-8", "surrogateescape")
