"""Prompts and answers, kept for the log and for spans where `telemetry.log_content` asks for them.

Both are told as OpenTelemetry's conventions for generative AI write messages: a role, and parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nproxy.choices.fold import fold
from nproxy.choices.plan import Request
from nproxy.openai.dialect import Dialect
from nproxy.openai.jsonvalue import JSON, dumps, loads
from nproxy.openai.sse import SSEDecoder, SSEError

MOST_BYTES = 256 << 10
"""Of a prompt and of an answer. What is longer is not told, but for the beginning of a stream."""

Message = dict[str, Any]


class Content:
    """What was asked and answered in one request. `heard` takes the request, `said` bytes of the answer."""

    __slots__ = ("_answer", "_request")

    def __init__(self) -> None:
        self._request: Request | None = None
        self._answer = bytearray()

    def heard(self, request: Request) -> None:
        self._request = request

    def said(self, data: bytes) -> None:
        self._answer += data[: MOST_BYTES - len(self._answer)]

    def input(self) -> list[Message]:
        """The prompt; nothing where it is too long, or nothing was understood."""
        request = self._request
        if request is None or len(request.body.raw) > MOST_BYTES:
            return []
        if request.dialect is Dialect.COMPLETIONS:
            return [_message("user", request.body.fields.get("prompt"))]
        messages = request.body.fields.get("messages")
        listed = messages if isinstance(messages, list) else []
        return [_message(str(one.get("role")), one) for one in listed if isinstance(one, dict)]

    def output(self) -> list[Message]:
        """The choices in the order of their indices, as far as they came."""
        pieces: dict[int, list[dict[str, JSON]]] = {}
        for choice in _choices(bytes(self._answer)):
            if isinstance(index := choice.get("index"), int):
                pieces.setdefault(index, []).append(choice)
        return [_answer(pieces[index]) for index in sorted(pieces)] if self._request is not None else []


def as_text(messages: Sequence[Message]) -> str | None:
    """Messages as an attribute carries them."""
    return dumps(list(messages)).decode() if messages else None


def _choices(answer: bytes) -> list[dict[str, JSON]]:
    """The choices of a JSON answer, or of all chunks of a stream."""
    decoder = SSEDecoder()
    try:
        events = [event.data for event in (*decoder.feed(answer), *decoder.close())] or [answer]
    except SSEError:
        events = [answer]
    found: list[dict[str, JSON]] = []
    for event in events:
        try:
            document = loads(event)
        except ValueError:  # the end mark, or what was cut
            continue
        choices = document.get("choices") if isinstance(document, dict) else None
        found += [one for one in choices if isinstance(one, dict)] if isinstance(choices, list) else []
    return found


def _answer(pieces: Sequence[Mapping[str, JSON]]) -> Message:
    """One choice from its pieces, or from the whole of it."""
    said = [piece.get("delta", piece.get("message")) for piece in pieces]
    deltas = [delta for delta in said if isinstance(delta, dict)]
    whole: dict[str, JSON] = (
        fold(deltas) if deltas else {"content": "".join(str(piece.get("text") or "") for piece in pieces)}
    )
    ends = [reason for piece in pieces if (reason := piece.get("finish_reason"))]
    return {**_message("assistant", whole), "finish_reason": ends[-1] if ends else None}


def _message(role: str, said: JSON) -> Message:
    """A message as parts: its text, its thoughts, its calls; of what is no text, the kind alone."""
    message = said if isinstance(said, dict) else {"content": said}
    parts = [*_texts("reasoning", message.get("reasoning_content")), *_texts("text", message.get("content"))]
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else []:
        if isinstance(call, dict) and isinstance(function := call.get("function"), dict):
            told = {"name": function.get("name"), "arguments": function.get("arguments")}
            parts.append({"type": "tool_call", "id": call.get("id"), **told})
    return {"role": role, "parts": parts}


def _texts(kind: str, content: JSON) -> list[Message]:
    if isinstance(content, str):
        return [{"type": kind, "content": content}] if content else []
    if not isinstance(content, list):
        return []
    return [part for one in content for part in _part(kind, one)]


def _part(kind: str, one: JSON) -> list[Message]:
    """One part of a content, or one prompt of several."""
    match one:
        case str(text) | {"text": str(text)}:
            return [{"type": kind, "content": text}]
        case {"type": str(other)}:
            return [{"type": other}]
        case _:
            return []
