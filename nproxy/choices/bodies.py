"""Whole bodies read as the chunks of a stream, so that both forms are processed alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from nproxy.openai.chunks import UpstreamChoice, UpstreamChunk
from nproxy.openai.dialect import Dialect
from nproxy.openai.jsonvalue import JSON


def in_place(answer: UpstreamChunk, promised: int) -> UpstreamChunk:
    """Number the choices of a whole answer by position, if their indices do not number all of them.

    An answer with fewer choices than promised is left as it is, unless two of them have the same index.
    """
    count = len(answer.choices)
    if count == 1 and (count < promised or answer.choices[0].index == 0):
        return answer
    indices = {choice.index for choice in answer.choices}
    if indices == set(range(count)) or (count < promised and len(indices) == count):
        return answer
    return replace(answer, choices=tuple(replace(choice, index=place) for place, choice in enumerate(answer.choices)))


def as_chunks(answer: UpstreamChunk, dialect: Dialect) -> list[UpstreamChunk]:
    """Return a whole answer as the chunks of a stream: per choice what it says, then its finish; usage at the end."""
    chunks = []
    for choice in answer.choices:
        text = replace(choice, delta=_with_call_indices(choice.delta), finish_reason=None)
        finish = UpstreamChoice(choice.index, dialect.empty_delta, None, choice.finish_reason or "stop", None, {})
        chunks += [replace(answer, choices=(piece,), usage=None) for piece in (text, finish)]
    return [*chunks, replace(answer, choices=(), extra={})]


def _with_call_indices(delta: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """Return a message as a delta, in which tool calls are numbered."""
    calls = delta.get("tool_calls")
    if not isinstance(calls, list):
        return delta
    numbered: list[JSON] = [
        {"index": place, **call} if isinstance(call, dict) else call for place, call in enumerate(calls)
    ]
    return {**delta, "tool_calls": numbered}
