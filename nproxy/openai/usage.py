"""Token counts, and the rules by which those of several calls become one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from itertools import chain
from math import inf
from typing import NamedTuple

from nproxy.openai.frozen import frozen
from nproxy.openai.jsonvalue import JSON

_OWN = frozenset(
    {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details", "completion_tokens_details"}
)
_OF_THE_PROMPT = re.compile("prompt|input|cache")
_PAID = re.compile("cost")

MOST_TOKENS = 1 << 53
"""The highest count. Larger ones would not be exact as floats, which metrics, rates and some JSON parsers use."""


@frozen
class Usage:
    """Tokens of a prompt and of what was generated. The total is always their sum. Nothing may change it."""

    prompt: int
    completion: int
    prompt_details: Mapping[str, int] | None = None
    """OpenAI's `prompt_tokens_details`, integers only; None if absent."""
    completion_details: Mapping[str, int] | None = None
    """OpenAI's `completion_tokens_details`, integers only; None if absent."""
    extra: Mapping[str, JSON] = field(default_factory=dict)
    """All other keys as the upstream reported them (cache hits, a cost ...)."""

    @property
    def total(self) -> int:
        """Prompt and completion together, whatever total the upstream reported."""
        return self.prompt + self.completion

    def to_json(self) -> dict[str, JSON]:
        """Return OpenAI's `usage` object. Absent details have no key."""
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
    """One leg's usage. prompt: the position of the one prompt that it carried, None if it carried all of them."""

    prompt: int | None
    usage: Usage | None


def parse_usage(value: JSON) -> Usage | None:
    """Read a `usage` value; None for null and for anything that is not a usage object with whole counts.

    Also None for one that counts nothing at all, as in every chunk but the last of Ollama's legacy streams. A missing
    completion count is what the total leaves, 0 if there is no total either. Without `prompt_tokens`, the counts are
    `input_tokens` and `output_tokens`, as mlx-vlm named them (Blaizzy/mlx-vlm#1009).
    """
    if not isinstance(value, dict):
        return None
    prompt, completion = _count(value.get("prompt_tokens")), _count(value.get("completion_tokens"))
    if prompt is None:
        prompt, completion = _count(value.get("input_tokens")), _count(value.get("output_tokens"))
    if prompt is None:
        return None
    if completion is None:
        completion = max(0, (_count(value.get("total_tokens")) or 0) - prompt)
    if prompt == completion == 0:
        return None
    return Usage(
        prompt,
        completion,
        _details(value.get("prompt_tokens_details")),
        _details(value.get("completion_tokens_details")),
        {} if value.keys() <= _OWN else {key: extra for key, extra in value.items() if key not in _OWN},
    )


def within_leg(
    tails: Sequence[Usage], by_choice: Mapping[int, Usage], choices: int | None = None, fewer_are_parts: bool = False
) -> Usage | None:
    """Return one leg's usage from what its stream reported; None if there is none.

    tails: usages of chunks without choices, in order; more than one means one per choice (llama.cpp), and they are
    summed. by_choice: for each choice, the last usage that came in a chunk with it; counts only if there is no tail.
    choices: how many the leg carries, if known. More tails than that are running totals, and fewer are one total that
    is repeated; the last one counts. fewer_are_parts: fewer are summed, because more may come, or each is that of a
    prompt.
    """
    if choices is not None and (len(tails) > choices or (len(tails) < choices and not fewer_are_parts)):
        tails = tails[-1:]
    parts = tails or [by_choice[index] for index in sorted(by_choice)]
    return _siblings(parts) if parts else None


def merge(legs: Sequence[LegUsage]) -> tuple[Usage | None, bool]:
    """Add up the usage of a request's legs, which come in leg order. Returns it, and whether prompt counts differ.

    A prompt counts once: the maximum over the legs that carried it. Completions and their details are summed key by
    key. Prompt details are those of the first leg that carried the prompt. If a leg carried all prompts, its prompt
    counts are those of the request. There is no usage if a leg has none, or there is no leg. Keys that no specification
    names: those about a prompt (their name contains prompt, input or cache, but not cost) are treated like the prompt's
    details; other numbers, also within objects, are summed; of anything else the first counts.
    """
    if len(legs) == 1:
        return legs[0].usage, False
    groups: dict[int | None, list[Usage]] = {}
    for prompt, usage in legs:
        if usage is None:
            return None, False
        if prompt in groups:
            groups[prompt].append(usage)
        else:
            groups[prompt] = [usage]
    if not groups:
        return None, False
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
    return whole, differ


def running(legs: Iterable[LegUsage]) -> Usage | None:
    """Return the running total while legs still stream: the counts of merge over the legs that have a usage so far.

    It never falls as long as no leg's own counts fall. Details are left out, because they are final only at the end.
    """
    whole, _ = merge([leg for leg in legs if leg.usage is not None])
    return None if whole is None else Usage(whole.prompt, whole.completion)


def _siblings(usages: Sequence[Usage]) -> Usage:
    """Join usages of the same prompt: the prompt counts once, completions are summed."""
    if len(usages) == 1:
        return usages[0]
    return Usage(
        prompt=max([usage.prompt for usage in usages]),
        completion=sum([usage.completion for usage in usages]),
        prompt_details=usages[0].prompt_details,  # a sibling's cached tokens were computed by the first one
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
    """Join unknown keys: those about a prompt over `of_prompts`, all others over `parts`."""
    whole: dict[str, JSON] = {}
    for key in dict.fromkeys(chain.from_iterable(parts)):
        of_prompt = _OF_THE_PROMPT.search(key) is not None and _PAID.search(key) is None
        values = [part[key] for part in (of_prompts if of_prompt else parts) if key in part]
        if values:
            whole[key] = _sum(values)
    return whole


def _sum(values: Sequence[JSON]) -> JSON:
    """Add up numbers, also within objects; of anything else, and beyond the range of floats, the first counts."""
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) == len(values):
        try:
            total = sum(numbers)
        except OverflowError:  # a fraction, beside an integer that is larger than any float
            return values[0]
        return values[0] if total in (inf, -inf) else total
    objects = [value for value in values if isinstance(value, dict)]
    if len(objects) < len(values):
        return values[0]
    return {key: _sum([value[key] for value in objects if key in value]) for key in dict.fromkeys(chain(*objects))}


def _count(value: JSON) -> int | None:
    return value if type(value) is int and 0 <= value <= MOST_TOKENS else None


def _details(value: JSON) -> dict[str, int] | None:
    if value is None or not isinstance(value, dict):
        return None
    counts = ((key, _count(count)) for key, count in value.items())
    return {key: count for key, count in counts if count is not None}
