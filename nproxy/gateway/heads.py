"""Checks of request heads that a server has to make and the parser does not (RFC 9110 and 9112)."""

from __future__ import annotations

import re
from functools import lru_cache

from aiohttp import HttpVersion10, HttpVersion11, hdrs
from aiohttp.web_request import BaseRequest

from nproxy.gateway.server import MOST_HEAD_BYTES, answer_as_http11
from nproxy.openai.errors import ApiError, invalid_request, unknown_url, wrong_method

_FEW_HEADERS = 7
"""The sizes of so few headers are not added up: each is limited by the parser, so they have 112 KiB at most."""
_AUTHORITY_ENDS = re.compile("[/?#]")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~%!$&'()*+,;=-]*)(:[0-9]*)?")


def refusal(request: BaseRequest) -> ApiError | None:
    """Return the error for an invalid head, else None. After such a head, the connection cannot be used any more."""
    headers = request.headers
    if request.version != HttpVersion11 and (wrong := _wrong_version(request)) is not None:
        return wrong
    if hdrs.TRANSFER_ENCODING in headers and not _only_chunked(request):
        message = "The only Transfer-Encoding that is supported is chunked."
        return invalid_request(message, status=501)  # RFC 9112, section 6.1
    host = headers.get(hdrs.HOST, "")
    if not _names_a_host(host):
        return invalid_request("The Host header is not a valid host.")
    if (named := authority(request.raw_path)) is not None and named != host.lower():
        return unknown_url("The request is for another host.")
    if request.method in ("CONNECT", "TRACE"):
        message = f"{request.method} is not supported: this is not a forward proxy, and headers contain secrets."
        return wrong_method(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"), message)
    if len(headers) > _FEW_HEADERS and _size(request) > MOST_HEAD_BYTES:
        return invalid_request(f"The headers are longer than {MOST_HEAD_BYTES} bytes.", status=431)
    return None


def _wrong_version(request: BaseRequest) -> ApiError | None:
    if request.version != HttpVersion10:
        answer_as_http11(request)
        return invalid_request("This version of HTTP is not supported.")
    if hdrs.TRANSFER_ENCODING in request.headers:
        return invalid_request("Transfer-Encoding is not allowed in HTTP/1.0.")
    return None


def _only_chunked(request: BaseRequest) -> bool:
    codings = request.headers.getall(hdrs.TRANSFER_ENCODING)
    return len(codings) == 1 and codings[0].strip().lower() == "chunked"


@lru_cache(64)  # a gateway has few host names
def _names_a_host(host: str) -> bool:
    return _HOST.fullmatch(host) is not None


def origin_form(target: str) -> str:
    """Return a request target as path and query. Servers must accept the absolute form, too (RFC 9112, 3.2.2)."""
    named = authority(target)
    if named is None:
        return target
    path = target[target.index("://") + 3 + len(named) :]
    return path if path.startswith("/") else f"/{path}"


def authority(target: str) -> str | None:
    """Return the host of a target in absolute form, in lower case; None if it has another form."""
    if target[:1] == "/":
        return None
    scheme, separator, rest = target.partition("://")
    return _AUTHORITY_ENDS.split(rest)[0].lower() if separator and scheme.lower() in ("http", "https") else None


def _size(request: BaseRequest) -> int:
    return sum(len(name) + len(value) + 4 for name, value in request.raw_headers)
