"""The server that a command talks to: its URL and key, read by the rules of the settings file."""

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
    """A server, and the key that it is shown: as a bearer token, and nowhere else."""

    replica: Replica
    key: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return str(self.replica)

    @property
    def url(self) -> str:
        """Its base URL, without a slash at the end."""
        return self.replica.url

    @property
    def socket(self) -> str | None:
        """The path of its Unix socket, where it has one."""
        return None if self.replica.socket is None else str(self.replica.socket)

    @property
    def headers(self) -> dict[str, str]:
        """Those of every request: the key, and the wish for bytes as they are."""
        return {"accept-encoding": "identity", **({"authorization": f"Bearer {self.key}"} if self.key else {})}

    def blotted(self, body: bytes) -> bytes:
        """What the server said, without the key, which it may repeat in an error."""
        for written in self._written():
            body = body.replace(written.encode(), _BLOT.encode())
        return body

    def without_key(self, words: str) -> str:
        """Words for the user, without the key."""
        for written in self._written():
            words = words.replace(written, _BLOT)
        return words

    def _written(self) -> tuple[str, ...]:
        """The key as it is, and as JSON writes it: some servers put a backslash before a slash."""
        if not self.key:
            return ()
        quoted = json.dumps(self.key)[1:-1]
        return self.key, quoted, quoted.replace("/", "\\/")


def parse_target(url: str, api_key: str | None) -> Target:
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
    return Target(replica, key)
