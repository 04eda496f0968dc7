"""Token counts, and the rules by which those of several calls become one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nproxy.openai.jsonvalue import JSON


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a prompt and of what was generated; the total is always their sum.

    prompt_details, completion_details: OpenAI's `prompt_tokens_details` and `completion_tokens_details`,
    integers only; None where absent.
    """

    prompt: int
    completion: int
    prompt_details: Mapping[str, int] | None = None
    completion_details: Mapping[str, int] | None = None

    @property
    def total(self) -> int:
        """Prompt and completion together, whatever the upstream said."""
        return self.prompt + self.completion

    def to_json(self) -> dict[str, JSON]:
        """Give OpenAI's `usage` object."""
        raise NotImplementedError


class LegUsage(NamedTuple):
    """One leg's usage. prompt: position of the one prompt it carried, None when it carried all of them."""

    prompt: int | None
    usage: Usage | None


class Merged(NamedTuple):
    """Several legs' usage as one; `prompts_differ` says that legs counted the same prompt differently."""

    usage: Usage | None
    prompts_differ: bool


def parse_usage(value: JSON) -> Usage | None:
    """Read a `usage` value; None for null and for anything that is not a usage object with whole counts."""
    raise NotImplementedError


def within_leg(tails: Sequence[Usage], by_choice: Mapping[int, Usage]) -> Usage | None:
    """Give one leg's usage from what its stream said.

    tails: usages of chunks without choices, in order; more than one means one per choice (llama.cpp), and
    they are summed. by_choice: per choice the last usage that a chunk with that choice carried; it counts
    only where there is no tail. None where there is neither.
    """
    raise NotImplementedError


def merge(legs: Iterable[LegUsage]) -> Merged:
    """Add up the usage of a request's legs, which come in leg order.

    A prompt counts once: the maximum over the legs that carried it. Completions and their details are
    summed key by key. Prompt details are those of the first leg that carried the prompt. No usage at all
    where one leg has none.
    """
    raise NotImplementedError


def running(legs: Iterable[LegUsage]) -> Usage | None:
    """Give the running total while legs still stream: like merge, but over the legs that have a usage so far."""
    raise NotImplementedError
