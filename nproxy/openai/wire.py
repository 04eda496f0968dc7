"""The one writer of what a client reads: stream frames and whole answers, for gateway and engine alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from nproxy.openai.dialect import Dialect
from nproxy.openai.errors import ApiError
from nproxy.openai.jsonvalue import JSON
from nproxy.openai.usage import Usage

__all__ = ["DONE", "PING", "Dialect", "Wire", "error_event", "event"]

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"

_EMPTY: Mapping[str, JSON] = MappingProxyType({})


def event(data: bytes) -> bytes:
    """Frame one event's data, which holds no line break."""
    return b"data: " + data + b"\n\n"


def error_event(error: ApiError) -> bytes:
    """Write the event that ends a stream in failure; no `[DONE]` follows it."""
    return event(error.envelope())


@dataclass(frozen=True)
class Wire:
    """What all frames of one answer share. created: seconds since 1970.

    include_usage: every chunk carries `usage`, null on all but the last. fingerprint: None leaves the key out.
    Frames end in a blank line and are ready to be written; texts are any strings.
    """

    dialect: Dialect
    id: str
    created: int
    model: str
    fingerprint: str | None = None
    include_usage: bool = False

    def with_fingerprint(self, fingerprint: str | None) -> Wire:
        """Give the same wire with another `system_fingerprint`."""
        raise NotImplementedError

    def prelude(self, indices: Iterable[int]) -> bytes:
        """Write the role chunks of these choices, one each, in the given order; nothing for legacy completions."""
        raise NotImplementedError

    def text(self, index: int, text: str, *, finish_reason: str | None = None, logprobs: JSON = None) -> bytes:
        """Write a chunk of plain text: `delta.content`, or `text` in legacy completions. The engine's usual frame.

        An empty text with a finish_reason gives an empty delta.
        """
        raise NotImplementedError

    def chunk(
        self,
        index: int,
        delta: Mapping[str, JSON],
        *,
        finish_reason: str | None = None,
        logprobs: JSON = None,
        extra: Mapping[str, JSON] = _EMPTY,
        usage: Usage | None = None,
        top: Mapping[str, JSON] = _EMPTY,
    ) -> bytes:
        """Write a chunk with one choice.

        delta: for legacy completions `{"text": ...}`, whose keys stand in the choice itself. extra: further keys
        of the choice. usage: a running total. top: further keys of the chunk. Own keys win over both.
        """
        raise NotImplementedError

    def usage_tail(self, usage: Usage, top: Mapping[str, JSON] = _EMPTY) -> bytes:
        """Write the chunk without choices that carries the usage; it comes last before `[DONE]`."""
        raise NotImplementedError

    def choice(
        self,
        index: int,
        message: Mapping[str, JSON],
        *,
        finish_reason: str | None,
        logprobs: JSON = None,
        extra: Mapping[str, JSON] = _EMPTY,
    ) -> dict[str, JSON]:
        """Give one choice of a whole answer.

        message: for chat the message (role "assistant" and content null are added where absent), for legacy
        completions `{"text": ...}`.
        """
        raise NotImplementedError

    def answer(
        self, choices: Sequence[Mapping[str, JSON]], usage: Usage | None, top: Mapping[str, JSON] = _EMPTY
    ) -> bytes:
        """Write the whole JSON answer; `choices` as given by `choice`, in index order."""
        raise NotImplementedError
