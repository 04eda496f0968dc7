"""Who may come in by the admin port: no page in a browser, and nobody without the token."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from aiohttp import hdrs

from nproxy.config import Admin, digest_of
from nproxy.gateway.auth import shown_key
from nproxy.openai.errors import ApiError

_BY_HAND = frozenset({"none", "same-origin"})
"""What `Sec-Fetch-Site` says of a request that no other site's page has sent."""


def refuse_pages(headers: Mapping[str, str], settings: Admin) -> None:
    """Raise ApiError 403 for a request that a page in a browser sent, which stands inside where its author does not.

    It gives itself away by its Origin. One that had a host name of its own resolve to this machine has none to hide:
    so where no token is asked for, the port answers only to addresses, and to localhost.
    """
    if hdrs.ORIGIN in headers or headers.get("Sec-Fetch-Site", "none") not in _BY_HAND:
        raise _forbidden("The admin port is not for pages in a browser.")
    if settings.token is None and not _is_no_name(headers.get(hdrs.HOST, "")):
        raise _forbidden("Without a token, the admin port is called by an address or as localhost.")


def demand_token(headers: Mapping[str, str], settings: Admin) -> None:
    """Raise ApiError 401 unless the token is shown, where one is configured. Takes as long for any wrong one."""
    if settings.token is None:
        return
    shown = digest_of(shown_key(headers) or "")
    if not hmac.compare_digest(shown, digest_of(settings.token.get_secret_value())):
        raise ApiError(
            401,
            "The admin token was not shown. It belongs into a header: 'Authorization: Bearer TOKEN'.",
            type="invalid_request_error",
            code="invalid_admin_token",
            headers={"WWW-Authenticate": "Bearer"},
        )


def _is_no_name(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or bool(ip_address(name))
    except ValueError:
        return False


def _forbidden(message: str) -> ApiError:
    return ApiError(403, message, type="permission_error", code="forbidden")
