"""The head of a request, as bytes."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import hdrs
from yarl import URL

_WITHOUT_BODIES = frozenset({hdrs.METH_GET, hdrs.METH_HEAD, hdrs.METH_OPTIONS, hdrs.METH_TRACE})
"""Methods that say nothing of a body where they have none (RFC 9110, section 8.6)."""


def request_head(method: str, url: URL, headers: Mapping[str, str], size: int | None, *, via: str) -> bytes:
    """The request line and all header fields, with the empty line behind them.

    headers: a multidict's items, repeated names included; a `Host` among them goes before the URL's. size: bytes of
    the body; None for one in chunks, unless the headers say how long it is. via: added to what has sent it on so far.
    What is no UTF-8 leaves as the bytes that it came as. Raises ValueError for what would end a line.
    """
    lines = [f"{method} {url.raw_path_qs} HTTP/1.1"]
    if "Host" not in headers:
        lines.append(f"Host: {url.host_port_subcomponent}")
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines.append(f"Via: {via}")
    if hdrs.CONTENT_LENGTH not in headers:
        if size is None:
            lines.append("Transfer-Encoding: chunked")
        elif size or method not in _WITHOUT_BODIES:
            lines.append(f"Content-Length: {size}")
    lines.append("\r\n")
    head = "\r\n".join(lines)
    if not head.count("\r") == head.count("\n") == len(lines) or "\0" in head:
        raise ValueError("a header holds what would end its line")
    return head.encode("utf-8", "surrogateescape")
