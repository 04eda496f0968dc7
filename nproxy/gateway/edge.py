"""The first checks of a request: its client's address, CORS, and its key."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from aiohttp import hdrs
from aiohttp.web_request import BaseRequest

from nproxy.config import Config, Key, loopback
from nproxy.gateway.auth import KeyRing, ring_of, shown_key, unnamed
from nproxy.gateway.callers import Caller, Rates, rates_of
from nproxy.gateway.cors import Cors, is_no_name, sent_by_another_page
from nproxy.gateway.proxies import Network, client_address
from nproxy.openai.errors import forbidden

_ONLY_READ = frozenset({hdrs.METH_GET, hdrs.METH_HEAD, hdrs.METH_OPTIONS})


@dataclass(frozen=True, slots=True)
class Edge:
    """Settings for the first checks of requests, ready for use. If settings or keys change, a new edge is made.

    keys: None if no key is needed. rates: of callers without a key. trusted: the networks of trusted proxies. by_name:
    whether clients may call the gateway by a name: nobody knows the names of a machine, but a loopback address without
    a proxy before it has none.
    """

    keys: KeyRing | None
    rates: Rates
    trusted: Sequence[Network]
    cors: Cors
    by_name: bool

    @classmethod
    def of(cls, config: Config, keys: Sequence[Key]) -> Self:
        """Return the edge of a configuration. keys: those of the keys file."""
        listen, limits = config.listen, config.limits
        rates = rates_of(limits.requests_per_minute, limits.choices_per_minute, limits.tokens_per_minute)
        by_name = bool(listen.trusted_proxies) or not loopback(listen.host)
        return cls(ring_of(config.auth, keys, rates), rates, listen.trusted_proxies, Cors(listen.cors_origins), by_name)

    def client(self, request: BaseRequest) -> str:
        """Return the address of the client, behind any trusted proxies."""
        return client_address(request.remote, request.headers.getall("X-Forwarded-For", ()), self.trusted)

    def refuse_other_pages(self, request: BaseRequest) -> None:
        """Raise ApiError 403 if no key is needed and a page of another origin, which is not allowed, sends something.

        It could not read the answer, but cause it. A page whose own name resolves to this machine could do both.
        """
        if self.keys is not None or request.method in _ONLY_READ or self.cors.allows(request.headers.get(hdrs.ORIGIN)):
            return
        if sent_by_another_page(request.headers):
            raise forbidden(
                "Pages of other origins may not use this gateway; its setting listen.cors_origins can allow them."
            )
        if not (self.by_name or is_no_name(request.headers.get(hdrs.HOST, ""))):
            raise forbidden(
                "Without keys, pages must call this gateway by its IP address or as localhost; its settings auth,"
                " listen.trusted_proxies or listen.cors_origins can allow this name."
            )

    def caller(self, request: BaseRequest, client: str) -> Caller:
        """Return the caller. Raises ApiError 401 if keys are configured and the request shows none of them."""
        shown = shown_key(request.headers)
        if self.keys is None:
            return unnamed(shown, client, self.rates)
        return self.keys.caller(shown, time.time())
