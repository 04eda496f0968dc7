"""The first checks of a request: its client's address, CORS, and its key."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from aiohttp import hdrs
from aiohttp.web_request import BaseRequest

from nproxy.config import Config, Key
from nproxy.gateway.auth import KeyRing, ring_of, shown_key, unnamed
from nproxy.gateway.callers import Caller
from nproxy.gateway.cors import Cors, sent_by_another_page
from nproxy.gateway.proxies import Network, client_address, neighbourhood
from nproxy.openai.errors import ApiError

_ONLY_READ = frozenset({hdrs.METH_GET, hdrs.METH_HEAD, hdrs.METH_OPTIONS})


@dataclass(frozen=True, slots=True)
class Edge:
    """Settings for the first checks of requests, ready for use. If settings or keys change, a new edge is made.

    keys: None if no key is needed. trusted: the networks of trusted proxies.
    """

    keys: KeyRing | None
    trusted: Sequence[Network]
    cors: Cors

    @classmethod
    def of(cls, config: Config, keys: Sequence[Key]) -> Self:
        """Return the edge of a configuration. keys: those of the keys file."""
        return cls(ring_of(config.auth, keys), config.listen.trusted_proxies, Cors(config.listen.cors_origins))

    def client(self, request: BaseRequest) -> str:
        """Return the address of the client, behind any trusted proxies."""
        return client_address(request.remote, request.headers.getall("X-Forwarded-For", ()), self.trusted)

    def refuse_other_pages(self, request: BaseRequest) -> None:
        """Raise ApiError 403 if no key is needed and a page of another origin, which is not allowed, sends something.

        It could not read the answer, but cause it.
        """
        if self.keys is None and sent_by_another_page(request.headers):
            origin = request.headers.get(hdrs.ORIGIN)
            if request.method not in _ONLY_READ and not self.cors.allows(origin):
                raise ApiError(
                    403,
                    "Pages of other origins may not use this gateway; its setting listen.cors_origins can allow them.",
                    type="permission_error",
                    code="forbidden",
                )

    def caller(self, request: BaseRequest, client: str) -> Caller:
        """Return the caller. Raises ApiError 401 if keys are configured and the request shows none of them."""
        shown = shown_key(request.headers)
        if self.keys is None:
            return unnamed(shown, neighbourhood(client))
        return self.keys.caller(shown, time.time())
