"""The server that a command talks to: its URL and key, parsed by the rules of the settings file."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from pydantic import SecretStr, ValidationError
from pydantic_core import PydanticCustomError

from nproxy.cli.wrong_use import WrongUse
from nproxy.config import Replica, Upstream
from nproxy.config.replicas import parse_address

_BLOT = "***"


@dataclass(frozen=True, slots=True)
class Target:
    """A server, and the key that is sent to it: as a bearer token, and nowhere else."""

    replica: Replica
    key: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return str(self.replica)

    @property
    def url(self) -> str:
        """Its base URL, without a trailing slash."""
        return self.replica.url

    @property
    def socket(self) -> str | None:
        """The path of its Unix socket, None if it has none."""
        return None if self.replica.socket is None else str(self.replica.socket)

    @property
    def headers(self) -> dict[str, str]:
        """The headers of every request: the key, and a request for uncompressed bytes."""
        return {"accept-encoding": "identity", **({"authorization": f"Bearer {self.key}"} if self.key else {})}

    def blotted(self, body: bytes) -> bytes:
        """Replace the key in a server's answer, which may repeat it in an error."""
        for written in self._written():
            body = body.replace(written.encode(), _BLOT.encode())
        return body

    def without_key(self, words: str) -> str:
        """Replace the key in text for the user."""
        for written in self._written():
            words = words.replace(written, _BLOT)
        return words

    def _written(self) -> tuple[str, ...]:
        """Return the key as it is, and as JSON writes it: some servers put a backslash before a slash."""
        if not self.key:
            return ()
        quoted = json.dumps(self.key)[1:-1]
        return self.key, quoted, quoted.replace("/", "\\/")


def parse_target(url: str, api_key: str | None) -> Target:
    """Parse a base URL and a key as typed. Raises WrongUse, whose message never contains the key.

    api_key: `${NAME}`, `file:PATH`, or the key itself. What a base URL and a key may be is defined once, by the
    settings.
    """
    try:
        replica = parse_address(url)
        upstream = Upstream.model_validate({"name": "target", "replicas": [replica], "api_key": api_key or "none"})
    except PydanticCustomError as error:
        why = "must not contain credentials; use --api-key" if error.type == "credentials" else error.message()
        raise WrongUse(f"URL: {why}") from None
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise WrongUse(f"--api-key: {first['msg']}") from None
    key = upstream.api_key.get_secret_value() if isinstance(upstream.api_key, SecretStr) else None
    return Target(replica, key)
