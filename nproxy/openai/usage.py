"""Token counts, and the rules by which those of several calls become one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from itertools import chain
from typing import NamedTuple

from nproxy.openai.frozen import frozen
from nproxy.openai.jsonvalue import JSON

_OWN = frozenset(
    {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details", "completion_tokens_details"}
)
_OF_THE_PROMPT = re.compile("prompt|input|cache")
_PAID = re.compile("cost")

MOST = 1 << 53
"""A count beyond is none: it would be no float, as which counts are added up in metrics and rates."""


@frozen
class Usage:
    """Tokens of a prompt and of what was generated; the total is always their sum.

    prompt_details, completion_details: OpenAI's `prompt_tokens_details` and `completion_tokens_details`,
    integers only; None where absent. extra: all other keys as the upstream told them (cache hits, a cost ...).
    Nothing may change it.
    """

    prompt: int
    completion: int
    prompt_details: Mapping[str, int] | None = None
    completion_details: Mapping[str, int] | None = None
    extra: Mapping[str, JSON] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Prompt and completion together, whatever the upstream said."""
        return self.prompt + self.completion

    def to_json(self) -> dict[str, JSON]:
        """Give OpenAI's `usage` object; details that are absent have no key."""
        value: dict[str, JSON] = {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.total,
        }
        if self.prompt_details is not None:
            value["prompt_tokens_details"] = dict(self.prompt_details)
        if self.completion_details is not None:
            value["completion_tokens_details"] = dict(self.completion_details)
        return {**value, **self.extra}


class LegUsage(NamedTuple):
    """One leg's usage. prompt: position of the one prompt it carried, None when it carried all of them."""

    prompt: int | None
    usage: Usage | None


class Merged(NamedTuple):
    """Several legs' usage as one; `prompts_differ` says that legs counted the same prompt differently."""

    usage: Usage | None
    prompts_differ: bool


def parse_usage(value: JSON) -> Usage | None:
    """Read a `usage` value; None for null and for anything that is not a usage object with whole counts.

    So is one that counts nothing at all, which each chunk of Ollama's legacy streams carries but the last. A missing
    completion count is what the total leaves, 0 where there is no total either.
    """
    if not isinstance(value, dict):
        return None
    prompt = _count(value.get("prompt_tokens"))
    if prompt is None:
        return None
    completion = _count(value.get("completion_tokens"))
    if completion is None:
        completion = max(0, (_count(value.get("total_tokens")) or 0) - prompt)
    if prompt == completion == 0:
        return None
    return Usage(
        prompt,
        completion,
        _details(value.get("prompt_tokens_details")),
        _details(value.get("completion_tokens_details")),
        {} if value.keys() <= _OWN else {key: told for key, told in value.items() if key not in _OWN},
    )


def within_leg(
    tails: Sequence[Usage], by_choice: Mapping[int, Usage], choices: int | None = None, *, fewer_are_parts: bool = False
) -> Usage | None:
    """Give one leg's usage from what its stream said.

    tails: usages of chunks without choices, in order; more than one means one per choice (llama.cpp), and
    they are summed. by_choice: per choice the last usage that a chunk with that choice carried; it counts
    only where there is no tail. choices: how many the leg carries, where known; with more tails than that they
    are running totals, with fewer a total that is told again, and the last one counts. fewer_are_parts: fewer are
    summed, for more may come, or each is that of a prompt. None where there is no usage.
    """
    if choices is not None and (len(tails) > choices or (len(tails) < choices and not fewer_are_parts)):
        tails = tails[-1:]
    parts = tails or [by_choice[index] for index in sorted(by_choice)]
    return _siblings(parts) if parts else None


def merge(legs: Iterable[LegUsage]) -> Merged:
    """Add up the usage of a request's legs, which come in leg order.

    A prompt counts once: the maximum over the legs that carried it. Completions and their details are
    summed key by key. Prompt details are those of the first leg that carried the prompt. Where a leg carried
    all prompts, its prompt counts are everybody's. No usage at all where one leg has none, or there is no leg.
    Keys that no specification names: what is told of a prompt (its name says prompt, input or cache, but not cost) is
    like the prompt's details; other numbers, also within objects, are summed; of anything else the first counts.
    """
    legs = list(legs)
    if len(legs) == 1:
        return Merged(legs[0].usage, prompts_differ=False)
    groups: dict[int | None, list[Usage]] = {}
    for prompt, usage in legs:
        if usage is None:
            return Merged(None, prompts_differ=False)
        if prompt in groups:
            groups[prompt].append(usage)
        else:
            groups[prompt] = [usage]
    if not groups:
        return Merged(None, prompts_differ=False)
    by_prompt = {prompt: _siblings(usages) for prompt, usages in groups.items()}
    prompts = [by_prompt[None]] if None in by_prompt else list(by_prompt.values())
    differ = any(len({usage.prompt for usage in usages}) > 1 for usages in groups.values())
    whole = Usage(
        prompt=sum([usage.prompt for usage in prompts]),
        completion=sum([usage.completion for usage in by_prompt.values()]),
        prompt_details=_sum_details([usage.prompt_details for usage in prompts]),
        completion_details=_sum_details([usage.completion_details for usage in by_prompt.values()]),
        extra=_sum_extra([usage.extra for usage in by_prompt.values()], [usage.extra for usage in prompts]),
    )
    return Merged(whole, differ)


def running(legs: Iterable[LegUsage]) -> Usage | None:
    """Give the running total while legs still stream: the counts of merge over the legs that have a usage so far.

    It never falls as long as no leg's own counts fall. Details are left out: they settle only at the end.
    """
    whole = merge(leg for leg in legs if leg.usage is not None).usage
    return None if whole is None else Usage(whole.prompt, whole.completion)


def _siblings(usages: Sequence[Usage]) -> Usage:
    """Join usages of the same prompt: the prompt once, the completions summed."""
    if len(usages) == 1:
        return usages[0]
    return Usage(
        prompt=max([usage.prompt for usage in usages]),
        completion=sum([usage.completion for usage in usages]),
        prompt_details=usages[0].prompt_details,  # a sibling's cached tokens are the first one's work
        completion_details=_sum_details([usage.completion_details for usage in usages]),
        extra=_sum_extra([usage.extra for usage in usages], [usages[0].extra]),
    )


def _sum_details(parts: Iterable[Mapping[str, int] | None]) -> dict[str, int] | None:
    whole: dict[str, int] | None = None
    for part in parts:
        if part is not None:
            whole = {} if whole is None else whole
            for key, count in part.items():
                whole[key] = whole.get(key, 0) + count
    return whole


def _sum_extra(parts: Sequence[Mapping[str, JSON]], of_prompts: Sequence[Mapping[str, JSON]]) -> dict[str, JSON]:
    """Join unknown keys: those told of a prompt over `of_prompts`, all others over `parts`."""
    whole: dict[str, JSON] = {}
    for key in dict.fromkeys(chain.from_iterable(parts)):
        of_prompt = _OF_THE_PROMPT.search(key) is not None and _PAID.search(key) is None
        told = [part[key] for part in (of_prompts if of_prompt else parts) if key in part]
        if told:
            whole[key] = _sum(told)
    return whole


def _sum(told: Sequence[JSON]) -> JSON:
    """Add up numbers, also within objects; of anything else the first counts."""
    numbers = [value for value in told if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) == len(told):
        return sum(numbers)
    objects = [value for value in told if isinstance(value, dict)]
    if len(objects) < len(told):
        return told[0]
    return {key: _sum([value[key] for value in objects if key in value]) for key in dict.fromkeys(chain(*objects))}


def _count(value: JSON) -> int | None:
    return value if type(value) is int and 0 <= value <= MOST else None


def _details(value: JSON) -> dict[str, int] | None:
    if value is None or not isinstance(value, dict):
        return None
    counts = ((key, _count(count)) for key, count in value.items())
    return {key: count for key, count in counts if count is not None}
