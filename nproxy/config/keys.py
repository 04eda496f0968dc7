"""The file of API keys: their names, their hashes, and what may be done with each."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, PlainSerializer, ValidationInfo, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from nproxy.config.checking import checked
from nproxy.config.sections import Settings, conflict, refuse
from nproxy.config.tree import read_file
from nproxy.config.values import Count, Name, Weight


def digest_of(key: str) -> bytes:
    """Return the digest by which a key is known.

    Keys are random, so they cannot be guessed, and a slow hash would protect nothing.
    """
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


_DIGEST = re.compile(r"sha256:([0-9a-fA-F]{64})")


def _parse_digest(value: object) -> object:
    if isinstance(value, bytes):
        return value
    found = _DIGEST.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise PydanticCustomError("hash", "must be sha256: and 64 hexadecimal digits, as nproxy keys prints it")
    return bytes.fromhex(found[1])


def _write_digest(digest: bytes) -> str:
    return f"sha256:{digest.hex()}"


def _parse_moment(value: object) -> object:
    """Read a day, which means its beginning, or a day and a time; both in UTC unless they name a time zone."""
    if not isinstance(value, str):
        return value
    try:
        moment = datetime.fromisoformat(value)
    except ValueError as error:
        raise PydanticCustomError("moment", "must be a date such as 2027-01-31, or a date and a time") from error
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _listed(value: object) -> object:
    return (_parse_digest(value),) if isinstance(value, str) else value


Digest = Annotated[
    bytes,
    BeforeValidator(_parse_digest),
    PlainSerializer(_write_digest, when_used="json"),
    WithJsonSchema({"type": "string"}),
]
Moment = Annotated[datetime, BeforeValidator(_parse_moment), WithJsonSchema({"type": "string"})]


class Key(Settings):
    """A key, and what its caller may do."""

    name: Name
    """Shown in logs and metrics."""
    hash: Annotated[tuple[Digest, ...], Field(min_length=1), BeforeValidator(_listed)]
    """Hash of the key; a list of hashes while an old key is replaced by a new one."""
    weight: Weight = 1
    """Share of free capacity, relative to the other keys with waiting requests."""
    choices: Count | None = None
    """Maximum number of choices in flight; null: limits.per_key_choices."""
    requests_per_minute: Count | None = None
    """Maximum number of requests per minute; null: the value in `limits`."""
    choices_per_minute: Count | None = None
    """Maximum number of choices per minute; null: the value in `limits`."""
    tokens_per_minute: Count | None = None
    """Maximum number of tokens per minute, prompts and answers together; null: the value in `limits`."""
    models: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """The models that the key may use, by the names that clients use; null: all."""
    expires: Moment | None = None
    """The key is refused from then on: 2027-01-31, or a day and a time; UTC unless a time zone is given."""
    disabled: bool = False
    """Refuse the key for now."""


class KeysFile(Settings):
    """The whole file. A file without a key is refused, because it is probably still being written."""

    keys: Annotated[tuple[Key, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _each_once(self, info: ValidationInfo) -> Self:
        refuse(info, self._names_twice(), self._hashes_twice())
        return self

    def _names_twice(self) -> Iterator[PydanticCustomError]:
        known: set[str] = set()
        for position, key in enumerate(self.keys):
            if key.name in known:
                message = "occurs twice; put the second hash into the list of the first entry"
                yield conflict(message, "keys", position, "name")
            known.add(key.name)

    def _hashes_twice(self) -> Iterator[PydanticCustomError]:
        known: set[bytes] = set()
        for position, key in enumerate(self.keys):
            if not known.isdisjoint(key.hash) or len(set(key.hash)) < len(key.hash):
                yield conflict("occurs twice", "keys", position, "hash")
            known.update(key.hash)


def read_keys(file: Path) -> tuple[Key, ...]:
    """Read a file of keys. Raises ConfigError with every problem at its line."""
    return checked(KeysFile, read_file(file, "keys: and the list of keys"), {}).keys
