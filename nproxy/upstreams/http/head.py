"""The head of a request, as bytes; and of what heads are made, answers' too."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Self

from aiohttp import hdrs
from yarl import URL

_WITHOUT_BODIES = frozenset({hdrs.METH_GET, hdrs.METH_HEAD, hdrs.METH_OPTIONS, hdrs.METH_TRACE})
"""Methods that say nothing of a body where they have none (RFC 9110, section 8.6)."""

_NONE: Sequence[tuple[str, str]] = ()


class Fields:
    """Header fields as they are sent, ready for many requests.

    text: their lines, `count` of them. sized: they say how long the body is.
    """

    __slots__ = ("count", "sized", "text")

    def __init__(self, items: Collection[tuple[str, str]], *, sized: bool = False) -> None:
        self.text = lines(items)
        self.count = len(items)
        self.sized = sized

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Self:
        """A multidict's, repeated names included."""
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

    size: bytes of the body; None for one in chunks, unless the fields say how long it is. via: added to what has sent
    it on so far. host: in the place of the URL's. own: fields of this request, behind those that others share.
    Raises ValueError for what would end a line.
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
    """Header fields as they stand in a head. Nothing is checked."""
    joined = "\r\n".join(map(": ".join, items))  # names are of a class of their own, which f-strings ask each time
    return f"{joined}\r\n" if joined else ""


def ended(head: str, count: int) -> bytes:
    """A head of so many lines, with the empty line behind them. Raises ValueError for what would end one of them.

    What is no UTF-8 leaves as the bytes that it came as.
    """
    if not head.count("\r") == head.count("\n") == count or "\0" in head:
        raise ValueError("a header holds what would end its line")
    return f"{head}\r\n".encode("utf-8", "surrogateescape")
