"""One response in bytes: as events while it is computed, or whole; kept at its end for requests that
continue from it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from engine.messages import Logprobs
from engine.server.answering.choice_text import ChoiceText
from engine.server.answering.logprobs import Spelling
from engine.server.answering.output import Piece, ReportedToken
from engine.server.endpoints.responses.output import Event, Items
from nproxy.openai.errors import ApiError
from nproxy.openai.jsonvalue import JSON, dumps
from nproxy.openai.usage import Usage

Response = dict[str, JSON]

_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}
"""OpenAI's codes of a response that failed, by status. To repeat a request that is at fault itself would not help."""


class ResponseWriter:
    """Writes what Answer sends.

    head: the response's members that are known from its beginning; keep: called at its end.
    """

    def __init__(self, head: Response, items: Items, spelling: Spelling, keep: Callable[[Response], None]) -> None:
        self._head = head
        self._items = items
        self._spelling = spelling
        self._keep = keep
        self._finish: str | None = None
        self._sent = 0

    def prelude(self) -> bytes:
        """Return the events that the response has begun."""
        begun = self._response("in_progress")
        return self._events([("created", {"response": begun}), ("in_progress", {"response": begun})])

    def chunk(self, piece: Piece, usage: Usage | None = None) -> bytes:
        """Return a piece's events: items that begin and end, and more of their text."""
        return self._events(self._add(piece))

    def end(self, usage: Usage) -> bytes:
        """Return the last item's end, and the whole response."""
        last = self._events(self._items.end(complete=self._complete))
        whole = self._whole(usage)
        return last + self._events([(str(whole["status"]), {"response": whole})])

    def failure(self, error: ApiError, unsent: bytes) -> bytes:
        """Return the response so far, with the reason why it failed; also its beginning, as its events are numbered."""
        code = _CODES.get(error.status, "server_error")
        failed = self._response("failed", error={"code": code, "message": error.message})
        return unsent + self._events([("failed", {"response": failed})])

    def answer(
        self, choices: Sequence[ChoiceText], usage: Usage, prompt_logprobs: Sequence[Sequence[Logprobs | None] | None]
    ) -> bytes:
        """Return the whole response, made of the same pieces."""
        for piece in [piece for choice in choices for piece in choice.pieces]:
            deque(self._add(piece), maxlen=0)
        deque(self._items.end(complete=self._complete), maxlen=0)
        return dumps(self._whole(usage))

    @property
    def _complete(self) -> bool:
        return self._finish != "length"

    def _add(self, piece: Piece) -> Iterable[Event]:
        self._finish = piece.finish
        return self._items.add(piece.parts, self._logprobs(piece.reported))

    def _logprobs(self, reported: Sequence[ReportedToken]) -> list[JSON]:
        if self._spelling.output_options.logprobs is None:
            return []
        return self._spelling.entries([one for one in reported if one.said])

    def _whole(self, usage: Usage) -> Response:
        status = "completed" if self._complete else "incomplete"
        cached, reasoned = (usage.prompt_details or {}), (usage.completion_details or {})
        whole = self._response(
            status,
            completed_at=int(time.time()) if self._complete else None,
            incomplete_details=None if self._complete else {"reason": "max_output_tokens"},
            usage={
                "input_tokens": usage.prompt,
                "input_tokens_details": {"cached_tokens": cached.get("cached_tokens", 0), "cache_write_tokens": 0},
                "output_tokens": usage.completion,
                "output_tokens_details": {"reasoning_tokens": reasoned.get("reasoning_tokens", 0)},
                "total_tokens": usage.total,
            },
        )
        self._keep(whole)
        return whole

    def _response(self, status: str, **members: JSON) -> Response:
        still: dict[str, JSON] = {"completed_at": None, "error": None, "incomplete_details": None, "usage": None}
        return {**self._head, "status": status, **still, **members, "output": list(self._items.done)}

    def _events(self, events: Iterable[Event]) -> bytes:
        return b"".join([self._event(f"response.{name}", members) for name, members in events])

    def _event(self, type: str, members: Mapping[str, JSON]) -> bytes:
        data = dumps({"type": type, "sequence_number": self._sent, **members})
        self._sent += 1
        return b"event: " + type.encode() + b"\ndata: " + data + b"\n\n"
