"""What a request meets first: where it comes from, which page it is for, whose key it shows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from aiohttp.web_request import BaseRequest

from nproxy.config import Config, Key
from nproxy.gateway.auth import KeyRing, ring_of, shown_key, unnamed
from nproxy.gateway.callers import Caller
from nproxy.gateway.cors import Cors
from nproxy.gateway.proxies import Network, client_address, neighbourhood


@dataclass(frozen=True, slots=True)
class Edge:
    """The settings of the gateway's outside, ready for use. Other settings, or changed keys, are another edge.

    keys: None where anybody may call.
    """

    keys: KeyRing | None
    trusted: Sequence[Network]
    cors: Cors

    @classmethod
    def of(cls, config: Config, keys: Sequence[Key]) -> Self:
        """keys: those of the keys file."""
        return cls(ring_of(config.auth, keys), config.listen.trusted_proxies, Cors(config.listen.cors_origins))

    def client(self, request: BaseRequest) -> str:
        """The address of the client, behind the proxies that are trusted."""
        return client_address(request.remote, request.headers.getall("X-Forwarded-For", ()), self.trusted)

    def caller(self, request: BaseRequest, client: str) -> Caller:
        """Who calls. Raises ApiError 401 where keys are configured and none of them is shown."""
        shown = shown_key(request.headers)
        if self.keys is None:
            return unnamed(shown, neighbourhood(client))
        return self.keys.caller(shown, time.time())
