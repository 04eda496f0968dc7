"""Access control of the admin port: no pages in a browser, and no requests without the token."""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from aiohttp import hdrs

from nproxy.config import Admin, digest_of
from nproxy.gateway.auth import shown_key
from nproxy.gateway.cors import is_no_name, sent_by_another_page
from nproxy.openai.errors import ApiError, forbidden


def refuse_pages(headers: Mapping[str, str], settings: Admin) -> None:
    """Raise ApiError 403 for a request of a page in a browser: the browser may be inside the network, its author not.

    Such requests are recognized by their Origin. A page whose own host name resolves to this machine (DNS rebinding)
    sends none. So if no token is configured, the Host header has to be an IP address or localhost.
    """
    if hdrs.ORIGIN in headers or sent_by_another_page(headers):
        raise forbidden("The admin port does not accept requests of web pages.")
    if settings.token is None and not is_no_name(headers.get(hdrs.HOST, "")):
        raise forbidden("Without a token, the admin port must be called by its IP address or as localhost.")


def demand_token(headers: Mapping[str, str], settings: Admin) -> None:
    """Raise ApiError 401 if a token is configured and not shown. The comparison takes constant time."""
    if settings.token is None:
        return
    shown = digest_of(shown_key(headers) or "")
    if not hmac.compare_digest(shown, digest_of(settings.token.get_secret_value())):
        raise ApiError(
            401,
            "The admin token is missing or wrong. Send it in the header 'Authorization: Bearer TOKEN'.",
            type="invalid_request_error",
            code="invalid_admin_token",
            headers={"WWW-Authenticate": "Bearer"},
        )
