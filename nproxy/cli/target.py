"""The server that a command talks to: its URL and key, read by the rules of the settings file."""

from __future__ import annotations

from pydantic import SecretStr, ValidationError
from pydantic_core import PydanticCustomError

from nproxy.cli.wrong_use import WrongUse
from nproxy.config import Replica, Upstream
from nproxy.config.replicas import parse_address


def parse_target(url: str, api_key: str | None) -> tuple[Replica, str | None]:
    """Read a base URL and a key as they are typed; raises WrongUse, whose message never holds the key.

    api_key: ${NAME}, file:PATH, or the key itself. One place says what a base URL and a key may be.
    """
    try:
        replica = parse_address(url)
        upstream = Upstream.model_validate({"name": "target", "replicas": [replica], "api_key": api_key or "none"})
    except PydanticCustomError as error:
        raise WrongUse(f"URL: {error.message()}") from None
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise WrongUse(f"--api-key: {first['msg']}") from None
    key = upstream.api_key.get_secret_value() if isinstance(upstream.api_key, SecretStr) else None
    return replica, key


def reason(error: Exception) -> str:
    """Why it was not reached: the innermost cause's own words, as the outer ones repeat them less clearly."""
    while (inner := error.__cause__ or error.__context__) is not None and isinstance(inner, Exception):
        error = inner
    return str(getattr(error, "strerror", None) or error or type(error).__name__).lower()
