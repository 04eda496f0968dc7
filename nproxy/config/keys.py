"""The file of API keys: who has one, as what it is known, and what may be done with it."""

from __future__ import annotations

import hashlib
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from nproxy.config.checking import checked
from nproxy.config.tree import read_file
from nproxy.config.values import Count, Name, Settings, Weight, conflict


def digest_of(key: str) -> bytes:
    """What a key is known by. Keys are random, so nothing could be guessed that a slow hash would protect."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


_DIGEST = re.compile(r"sha256:([0-9a-fA-F]{64})")


def _parse_digest(value: object) -> object:
    if isinstance(value, bytes):
        return value
    found = _DIGEST.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise PydanticCustomError("hash", "must be sha256: and 64 hexadecimal digits, as nproxy keys prints them")
    return bytes.fromhex(found[1])


def _write_digest(digest: bytes) -> str:
    return f"sha256:{digest.hex()}"


def _parse_moment(value: object) -> object:
    """Read a day, which means its begin, or a day and a time; both in UTC where they say nothing else."""
    if not isinstance(value, str):
        return value
    try:
        moment = datetime.fromisoformat(value)
    except ValueError as error:
        raise PydanticCustomError("moment", "must be a day, as in 2027-01-31, or a day and a time") from error
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
    """One who may call."""

    name: Name
    """Shown in logs and metrics."""
    hash: Annotated[tuple[Digest, ...], Field(min_length=1), BeforeValidator(_listed)]
    """What the key is known by; a list while an old key gives way to a new one."""
    weight: Weight = 1
    """Its share of what is free, measured against the others that wait."""
    choices: Count | None = None
    """Most choices in flight; null: what limits.per_key_choices says."""
    requests_per_minute: Count | None = None
    """Most requests a minute; null: what `limits` says."""
    choices_per_minute: Count | None = None
    """Most choices a minute."""
    tokens_per_minute: Count | None = None
    """Most tokens a minute, prompts and answers together."""
    models: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """The models that it may use, by the names that clients use; null: all."""
    expires: Moment | None = None
    """From then on it is refused: 2027-01-31, or a time with it; UTC unless it says another zone."""
    disabled: bool = False
    """Refused for now."""


class KeysFile(Settings):
    """The whole file. Without a key it is refused: it would be one that is being written."""

    keys: Annotated[tuple[Key, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        names: set[str] = set()
        digests: set[bytes] = set()
        for position, key in enumerate(self.keys):
            if key.name in names:
                message = "is there twice; a second hash goes into the list of its first entry"
                raise conflict(message, "keys", position, "name")
            if not digests.isdisjoint(key.hash) or len(set(key.hash)) < len(key.hash):
                raise conflict("is there twice", "keys", position, "hash")
            names.add(key.name)
            digests.update(key.hash)
        return self


def read_keys(file: Path) -> tuple[Key, ...]:
    """Read a file of keys. Raises ConfigError with every error at its line."""
    return checked(KeysFile, read_file(file), {}).keys
