"""The one writer of what a client reads: stream frames and whole answers, for gateway and engine alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

from nproxy.openai.dialect import Dialect
from nproxy.openai.errors import ApiError
from nproxy.openai.jsonvalue import JSON, dumps
from nproxy.openai.usage import Usage

DONE_FRAME = b"data: [DONE]\n\n"
PING = b": ping\n\n"
STREAM_HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "Content-Type": "text/event-stream; charset=utf-8",
        "Cache-Control": "no-cache",
        "X-Accel-Buffering": "no",  # nginx would buffer events
    }
)
"""Headers of an answer that is a stream of events."""

_EMPTY: Mapping[str, JSON] = MappingProxyType({})
_ROLE = b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
"""A choice, as `Wire.chunk` writes it."""
_ROLE_OF_CALLS = _ROLE.replace(b'""', b"null")
_OWN = frozenset({"id", "object", "created", "model", "system_fingerprint", "choices", "usage"})


def event(data: bytes) -> bytes:
    """Frame one event's data, which contains no line break."""
    return b"data: " + data + b"\n\n"


def error_event(error: ApiError) -> bytes:
    """Write the event that ends a stream in failure; no `[DONE]` follows it."""
    return event(error.envelope())


@dataclass  # made for each answer: a frozen one takes several times as long to make
class Wire:
    """What all frames of one answer share. Nothing may change it.

    Frames end in a blank line and are ready to be written; texts are any strings.
    """

    dialect: Dialect
    id: str
    created: int
    """Seconds since 1970."""
    model: str
    fingerprint: str | None = None
    """None leaves the key out."""
    include_usage: bool = False
    """Every chunk carries `usage`, which is null except on the last one and for running totals."""
    calls: bool = False
    """A choice must be a tool call, so its role comes with null as its content: no text, not an empty one."""

    def with_fingerprint(self, fingerprint: str | None) -> Wire:
        """Return the same wire with another `system_fingerprint`."""
        return self if fingerprint == self.fingerprint else replace(self, fingerprint=fingerprint)

    def prelude(self, indices: Iterable[int]) -> bytes:
        """Write the role chunks of these choices, one each, in the given order; nothing for legacy completions."""
        if self.dialect is Dialect.COMPLETIONS:
            return b""
        head, role, tail = self._head, _ROLE_OF_CALLS if self.calls else _ROLE, self._plain_tail
        return b"".join([b"%b%b%b" % (head, role % index, tail) for index in indices])

    def text(self, index: int, text: str, *, finish_reason: str | None = None) -> bytes:
        """Write a chunk of plain text: `delta.content`, or `text` in legacy completions. The engine's usual frame.

        An empty text with a finish_reason gives an empty delta in chat.
        """
        if self.dialect is Dialect.COMPLETIONS:
            return self.chunk(index, {"text": text}, finish_reason=finish_reason)
        delta: dict[str, JSON] = {} if not text and finish_reason is not None else {"content": text}
        return self.chunk(index, delta, finish_reason=finish_reason)

    def chunk(
        self,
        index: int,
        delta: Mapping[str, JSON],
        *,
        finish_reason: str | None = None,
        logprobs: JSON = None,
        extra: Mapping[str, JSON] = _EMPTY,
        usage: JSON = None,
        top: Mapping[str, JSON] = _EMPTY,
    ) -> bytes:
        """Write a chunk with one choice.

        delta: for legacy completions `{"text": ...}`, whose keys are in the choice itself. extra: further keys of the
        choice. usage: a running total, as Usage.to_json. top: further keys of the chunk. Own keys win over both.
        """
        body = {"delta": dict(delta)} if self.dialect is Dialect.CHAT else delta
        choice = {"index": index, **body, "logprobs": logprobs, "finish_reason": finish_reason}
        if extra:
            choice |= {key: value for key, value in extra.items() if key not in choice}
        tail = self._plain_tail if usage is None and not top else self._tail(usage, top)
        return b"".join((self._head, dumps(choice), tail))

    def usage_tail(self, usage: Usage, top: Mapping[str, JSON] = _EMPTY) -> bytes:
        """Write the chunk without choices that carries the usage; it comes last before `[DONE]`."""
        return self._head + self._tail(usage.to_json(), top)

    def beside(self, top: Mapping[str, JSON]) -> bytes:
        """Write a chunk without choices that carries further keys only."""
        return self._head + self._tail(None, top)

    def choice(
        self,
        message: Mapping[str, JSON],
        *,
        finish_reason: str | None,
        logprobs: JSON = None,
        extra: Mapping[str, JSON] = _EMPTY,
    ) -> bytes:
        """Write one choice of a whole answer, for `answer`: what follows its index.

        message: for chat the message (role "assistant" and content null are added if absent), for legacy completions
        `{"text": ...}`. extra: further keys. Own keys win over them.
        """
        body: Mapping[str, JSON] = message
        if self.dialect is Dialect.CHAT:
            body = {"message": {"role": "assistant", "content": None, **message}}
        choice = {**body, "logprobs": logprobs, "finish_reason": finish_reason}
        if extra:
            choice |= {key: value for key, value in extra.items() if key not in choice and key != "index"}
        return dumps(choice)[1:]

    def answer(
        self, choices: Iterable[tuple[int, bytes]], usage: Usage | None, top: Mapping[str, JSON] = _EMPTY
    ) -> bytes:
        """Write the whole JSON answer. choices: their indices, in order, and what `choice` wrote of them."""
        parts = [dumps(self._shared(self.dialect.answer_object))[:-1], b',"choices":[']
        for index, choice in choices:
            parts += (b',{"index":%d,' if len(parts) > 2 else b'{"index":%d,') % index, choice
        rest: dict[str, JSON] = {} if usage is None else {"usage": usage.to_json()}
        rest |= {key: value for key, value in top.items() if key not in _OWN}
        parts.append(b"]," + dumps(rest)[1:] if rest else b"]}")
        return b"".join(parts)

    def _shared(self, kind: str) -> dict[str, JSON]:
        shared: dict[str, JSON] = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        if self.fingerprint is not None:
            shared["system_fingerprint"] = self.fingerprint
        return shared

    @cached_property
    def _head(self) -> bytes:
        """A chunk's frame up to its first choice."""
        return b"data: " + dumps(self._shared(self.dialect.chunk_object))[:-1] + b',"choices":['

    @cached_property
    def _plain_tail(self) -> bytes:
        return self._tail(None, _EMPTY)

    def _tail(self, usage: JSON, top: Mapping[str, JSON]) -> bytes:
        """Return a chunk's frame from behind its last choice."""
        rest: dict[str, JSON] = {} if usage is None and not self.include_usage else {"usage": usage}
        rest |= {key: value for key, value in top.items() if key not in _OWN}
        return b"]" + (b"," + dumps(rest)[1:] if rest else b"}") + b"\n\n"
