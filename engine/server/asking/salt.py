"""Which requests share computed blocks. A client that can see that a prompt was computed before learns
something about it.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping

from engine.server.asking.members import Members
from nproxy.openai.errors import invalid_request
from nproxy.openai.jsonvalue import JSON
from nproxy.openai.refusals import wrong_type

_KEYS = ("authorization", "api-key", "x-api-key")  # OpenAI's, Azure's, Anthropic's
_SECRET = secrets.token_bytes(16)  # so that somebody who reads the core's memory cannot try keys


def salt_of(headers: Mapping[str, str], fields: Mapping[str, JSON]) -> str:
    """Return the salt of a request, made from its API key and from `cache_salt`, by which a client separates its own
    users.

    Empty if there is neither: all such requests share. headers: with lower-case names, or a case-insensitive multidict.
    Raises ApiError 400 for a `cache_salt` that is no text, or empty.
    """
    own = Members(fields).get("cache_salt")
    if own is not None and not isinstance(own, str):
        raise wrong_type("cache_salt", "a string", own)
    if own == "":
        raise invalid_request("'cache_salt' must not be empty.", param="cache_salt", code="invalid_value")
    parts = [headers.get(name, "") for name in _KEYS] + [own or ""]
    if not any(parts):
        return ""
    digest = hashlib.blake2b(key=_SECRET, digest_size=16)
    for text in parts:
        data = text.encode(errors="surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()
