"""Prompts and answers, kept for the log and for spans if `telemetry.log_content` is set.

Both are reported as messages in the form of OpenTelemetry's conventions for generative AI: a role, and parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nproxy.choices.fold import fold
from nproxy.openai.dialect import Dialect
from nproxy.openai.jsonvalue import JSON, dumps, loads
from nproxy.openai.requests import Request
from nproxy.openai.sse import SSEDecoder, SSEError

MOST_BYTES = 256 << 10
"""The most bytes of a prompt, and of an answer. Longer ones are not reported, except the beginning of a stream."""

Message = dict[str, Any]


class Content:
    """The prompt and the answer of one request. `asked` takes the request, `add` bytes of the answer."""

    __slots__ = ("_answer", "_request")

    def __init__(self) -> None:
        self._request: Request | None = None
        self._answer = bytearray()

    def asked(self, request: Request) -> None:
        """Note the request."""
        self._request = request

    def add(self, data: bytes) -> None:
        """Add a piece of the answer, as far as there is room."""
        self._answer += data[: MOST_BYTES - len(self._answer)]

    def input(self) -> list[Message]:
        """Return the prompt; empty if it is too long, or the request was not parsed."""
        request = self._request
        if request is None or len(request.body.raw) > MOST_BYTES:
            return []
        if request.dialect is Dialect.COMPLETIONS:
            return [_message("user", request.body.fields.get("prompt"))]
        messages = request.body.fields.get("messages")
        listed = messages if isinstance(messages, list) else []
        return [_message(str(one.get("role")), one) for one in listed if isinstance(one, dict)]

    def output(self) -> list[Message]:
        """Return the choices in the order of their indices, as far as they were written."""
        pieces: dict[int, list[dict[str, JSON]]] = {}
        for choice in _choices(bytes(self._answer)):
            if isinstance(index := choice.get("index"), int):
                pieces.setdefault(index, []).append(choice)
        return [_answer(pieces[index]) for index in sorted(pieces)] if self._request is not None else []


def as_text(messages: Sequence[Message]) -> str | None:
    """Return messages as the value of a span attribute: JSON; None if there are none."""
    return dumps(list(messages)).decode() if messages else None


def _choices(answer: bytes) -> list[dict[str, JSON]]:
    """Return the choices of a JSON answer, or of all chunks of a stream."""
    decoder = SSEDecoder()
    try:
        events = [event.data for event in (*decoder.feed(answer), *decoder.close())] or [answer]
    except SSEError:
        events = [answer]
    found: list[dict[str, JSON]] = []
    for event in events:
        try:
            document = loads(event)
        except ValueError:  # `[DONE]`, or an incomplete chunk
            continue
        choices = document.get("choices") if isinstance(document, dict) else None
        found += [one for one in choices if isinstance(one, dict)] if isinstance(choices, list) else []
    return found


def _answer(pieces: Sequence[Mapping[str, JSON]]) -> Message:
    """Return one choice as a message. pieces: its chunks, or the whole choice as the only element."""
    messages = [piece.get("delta", piece.get("message")) for piece in pieces]
    deltas = [delta for delta in messages if isinstance(delta, dict)]
    whole: dict[str, JSON] = (
        fold(deltas) if deltas else {"content": "".join(str(piece.get("text") or "") for piece in pieces)}
    )
    ends = [reason for piece in pieces if (reason := piece.get("finish_reason"))]
    return {**_message("assistant", whole), "finish_reason": ends[-1] if ends else None}


def _message(role: str, content: JSON) -> Message:
    """Return a message as parts: text, reasoning, tool calls. For other kinds of content, only the kind is kept."""
    message = content if isinstance(content, dict) else {"content": content}
    parts = [*_texts("reasoning", message.get("reasoning_content")), *_texts("text", message.get("content"))]
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        if isinstance(call, dict) and isinstance(function := call.get("function"), dict):
            called = {"name": function.get("name"), "arguments": function.get("arguments")}
            parts.append({"type": "tool_call", "id": call.get("id"), **called})
    return {"role": role, "parts": parts}


def _texts(kind: str, content: JSON) -> list[Message]:
    if isinstance(content, str):
        return [{"type": kind, "content": content}] if content else []
    if not isinstance(content, list):
        return []
    return [part for one in content for part in _part(kind, one)]


def _part(kind: str, one: JSON) -> list[Message]:
    """Convert one part of a content, or one prompt of several."""
    match one:
        case str(text) | {"text": str(text)}:
            return [{"type": kind, "content": text}]
        case {"type": str(other)}:
            return [{"type": other}]
        case _:
            return []
