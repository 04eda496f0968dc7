"""Authentication: a caller is identified by the key in the request, and a key by its SHA-256.

Keys are random (`nproxy keys new` draws 256 bits), so they cannot be guessed, and a slow hash would protect nothing. A
plain hash costs a microsecond per request; bcrypt would delay each request and use the gateway's CPU.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from nproxy.config import Auth, Key, digest_of
from nproxy.gateway.callers import UNLIMITED, Caller, Rates, rates_of
from nproxy.gateway.proxies import neighbourhood
from nproxy.openai.errors import ApiError

ONLY_NAME = "default"
"""The name of the caller who shows the one key of `auth.api_key`."""

_NOBODY = bytes(32)


@dataclass(frozen=True, slots=True)
class _Held:
    digest: bytes
    caller: Caller
    ends: float


_REFUSED = _Held(_NOBODY, Caller(name="", bucket=""), -inf)


class KeyRing:
    """All keys that may be used, by their hashes. Read-only: if keys change, a new ring is made."""

    __slots__ = ("_held",)

    def __init__(self, keys: Iterable[Key], for_all: Rates = UNLIMITED) -> None:
        """for_all: the rates of keys that have none of their own."""
        self._held: Mapping[bytes, _Held] = {
            digest: _Held(digest, _caller(key, for_all), inf if key.expires is None else key.expires.timestamp())
            for key in keys
            if not key.disabled
            for digest in key.hash
        }

    def caller(self, shown: str | None, now: float) -> Caller:
        """Return the caller who shows this key. shown: None for no key. now: Unix time.

        Raises ApiError 401. The error and the work before it are the same for no key, an unknown key and an expired
        key.
        """
        digest = digest_of(shown or "")
        held = self._held.get(digest, _REFUSED)
        if not hmac.compare_digest(digest, held.digest) or now >= held.ends:
            raise _unauthorized()
        return held.caller


def ring_of(auth: Auth | None, keys: Sequence[Key], for_all: Rates) -> KeyRing | None:
    """Return the keys that may be used; None if no key is needed.

    keys: those of the keys file, if there is one. for_all: the rates of keys that have none of their own.
    """
    if auth is None:
        return None
    if auth.api_keys_file is not None:
        return KeyRing(keys, for_all)
    only = "" if auth.api_key is None else auth.api_key.get_secret_value()
    return KeyRing([Key(name=ONLY_NAME, hash=(digest_of(only),))], for_all)


def shown_key(headers: Mapping[str, str]) -> str | None:
    """Return the credential of a request, or None.

    It is that of `Authorization: Bearer`, else Azure's `api-key`, else Anthropic's `x-api-key`.
    """
    scheme, _, credential = headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and (credential := credential.strip()):
        return credential
    return headers.get("api-key") or headers.get("x-api-key") or None


def unnamed(shown: str | None, client: str, rates: Rates) -> Caller:
    """Return the caller of a gateway that has no keys of its own.

    Such callers are distinguished by their credential, which an upstream may know, or else by the network that they
    control. client: their address.
    """
    bucket = f"address {neighbourhood(client)}" if shown is None else f"key {digest_of(shown).hex()[:16]}"
    return Caller("", bucket, 1.0, None, rates)


def _caller(key: Key, for_all: Rates) -> Caller:
    return Caller(
        name=key.name,
        bucket=key.name,
        weight=key.weight,
        choices=key.choices,
        rates=rates_of(
            key.requests_per_minute or for_all.requests,
            key.choices_per_minute or for_all.choices,
            key.tokens_per_minute or for_all.tokens,
        ),
        models=None if key.models is None else frozenset(key.models),
    )


def _unauthorized() -> ApiError:
    return ApiError(
        401,
        "The API key is missing or invalid. Send it in the header 'Authorization: Bearer KEY'.",
        type="invalid_request_error",
        code="invalid_api_key",
        headers={"WWW-Authenticate": "Bearer"},
    )
