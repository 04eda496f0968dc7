"""The prompts of requests: one text, random words, or the lines of a file."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nproxy.cli.bench.words import WORDS
from nproxy.cli.wrong_use import WrongUse
from nproxy.openai.dialect import Dialect
from nproxy.openai.jsonvalue import JSON, loads

Fields = Mapping[str, JSON]
"""A part of a request's body."""


class Prompts(Protocol):
    """Gives the fields of a body that hold the prompt, and other fields that its source has."""

    def fields(self, number: int) -> Fields:
        """Return the fields of the request with this number, counted from 0; the same at each call."""

    def __str__(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Same:
    """The same text in every request."""

    text: str
    dialect: Dialect

    def fields(self, number: int) -> Fields:
        """Return the fields with the text."""
        return spoken(self.text, self.dialect)

    def __str__(self) -> str:
        return "one, the same in every request"


@dataclass(frozen=True, slots=True)
class RandomWords:
    """Random words; only the first `shared` are the same in all requests. Drawn from `seed` and the number."""

    count: int
    shared: int
    seed: int
    dialect: Dialect

    def fields(self, number: int) -> Fields:
        """Return the fields with the request's words."""
        words = [*_draw(self.shared, f"{self.seed}"), *_draw(self.count - self.shared, f"{self.seed}/{number}")]
        return spoken(" ".join(words), self.dialect)

    def __str__(self) -> str:
        shared = f" ({self.shared} of them shared)" if self.shared else ""
        return f"{self.count} random words{shared}"


@dataclass(frozen=True, slots=True)
class Lines:
    """Bodies from a file, in order, and again from the beginning if there are more requests than lines."""

    name: str
    bodies: Sequence[Fields]

    def fields(self, number: int) -> Fields:
        """Return the fields of the line for this number."""
        return self.bodies[number % len(self.bodies)]

    def __str__(self) -> str:
        return f"{len(self.bodies)} of {self.name}"


def spoken(text: str, dialect: Dialect) -> Fields:
    """Return the fields of a body that contain a text."""
    return {"messages": [{"role": "user", "content": text}]} if dialect is Dialect.CHAT else {"prompt": text}


def read_lines(file: Path, dialect: Dialect) -> Lines:
    """Read a file of JSON lines: bodies of requests, of which `{"prompt": TEXT}` is the shortest.

    For chat a `prompt` becomes a message. Raises WrongUse with the line for anything else.
    """
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise WrongUse(f"--dataset: {file}: {error.strerror}") from None
    bodies = [_body(line, f"--dataset: {file}, line {at}", dialect) for at, line in enumerate(lines, 1) if line.strip()]
    if not bodies:
        raise WrongUse(f"--dataset: {file} contains no requests")
    return Lines(file.name, bodies)


def _body(line: bytes, where: str, dialect: Dialect) -> Fields:
    try:
        body = loads(line)
    except ValueError as error:
        raise WrongUse(f"{where}: not JSON: {error}") from None
    match body, dialect:
        case {"messages": [_, *_]}, Dialect.CHAT:
            return dict(body)
        case {"prompt": str(text)}, Dialect.CHAT:
            return {**{key: value for key, value in body.items() if key != "prompt"}, **spoken(text, dialect)}
        case {"prompt": str() | [_, *_]}, Dialect.COMPLETIONS:
            return dict(body)
    wanted = '"messages" or a "prompt"' if dialect is Dialect.CHAT else 'a "prompt"'
    raise WrongUse(f"{where}: must be an object with {wanted}")


def _draw(count: int, seed: str) -> list[str]:
    return random.Random(seed).choices(WORDS, k=count)
