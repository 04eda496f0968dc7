"""Writing answers: the same pieces as a stream of events, or folded into one JSON body."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from aiohttp import web

from engine.server.output import Output, Piece
from engine.server.router import Ticket
from nproxy.openai import request_id
from nproxy.openai.dialect import Dialect
from nproxy.openai.errors import ApiError
from nproxy.openai.jsonvalue import JSON
from nproxy.openai.usage import Usage
from nproxy.openai.wire import DONE, PING, Wire, error_event

_WRITE_SECONDS = 60.0
_HEADERS_AFTER_SECONDS = 30.0  # a stream without any event by then begins all the same, with a ping
_PING_SECONDS = 15.0  # no longer silence than this in a stream that has begun
_STREAM_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}

log = logging.getLogger("engine.server")


class Answer:
    """One request's answer on its way out. prompt_tokens: of all its prompts, each counted once."""

    def __init__(self, wire: Wire, ticket: Ticket, output: Output, choices: int, prompt_tokens: int) -> None:
        self._wire = wire
        self._ticket = ticket
        self._output = output
        self._choices = choices
        self._prompt_tokens = prompt_tokens

    async def whole(self) -> bytes:
        """Wait for all choices and write them as one body; raises ApiError when the core fails the request."""
        texts: list[list[str]] = [[] for _ in range(self._choices)]
        reasons: list[str | None] = [None] * self._choices
        while not self._output.finished:
            for piece in await self._next():
                texts[piece.index].append(piece.text)
                reasons[piece.index] = piece.finish
        choices = [
            self._wire.choice(index, self._delta("".join(parts)), finish_reason=reason)
            for index, (parts, reason) in enumerate(zip(texts, reasons, strict=True))
        ]
        return self._wire.answer(choices, self._usage())

    async def stream(self, request: web.Request, *, include_usage: bool, continuous: bool) -> web.StreamResponse:
        """Send events as they come, each step's in one write.

        The status goes out with the first tokens, or after half a minute without; until then ApiError is raised
        and has a status of its own, and after that an error is the stream's last event.
        """
        pieces = await self._next_by(_now() + _HEADERS_AFTER_SECONDS)
        response = web.StreamResponse(headers=_STREAM_HEADERS)
        await response.prepare(request)
        try:
            await self._events(response, pieces, include_usage=include_usage, continuous=continuous)
        except Exception as error:  # the status is out: all that is left is to break off
            if not isinstance(error, (TimeoutError, ConnectionError)):  # a reader that stalled, or has left
                log.exception("stream %s failed", response.headers[request_id.HEADER])
            if request.transport is not None:
                request.transport.abort()
        return response

    async def _events(
        self,
        response: web.StreamResponse,
        pieces: Sequence[Piece] | None,
        *,
        include_usage: bool,
        continuous: bool,
    ) -> None:
        """Write the stream from `pieces` on; None stands for a silence that was long enough for a ping."""
        prelude = self._wire.prelude(range(self._choices))
        written = _now()
        try:
            while not self._output.finished:
                if pieces is None:
                    data = PING
                else:
                    data, prelude = prelude + self._frames(pieces, continuous), b""
                if data:
                    async with asyncio.timeout(_WRITE_SECONDS):
                        await response.write(data)
                    written = _now()
                pieces = await self._next_by(written + _PING_SECONDS)
            data = prelude + self._frames(pieces or (), continuous)
            if include_usage:
                data += self._wire.usage_tail(self._usage())
            data += DONE
        except ApiError as error:
            data = error_event(error)
            response.force_close()
        async with asyncio.timeout(_WRITE_SECONDS):
            await response.write_eof(data)

    async def _next(self) -> Sequence[Piece]:
        """What the tokens that are there come to, once there are some; may be nothing that can be shown yet."""
        taken = self._output.take(await self._ticket.inbox.take())
        self._ticket.cut(taken.cut)
        self._ticket.over = self._output.finished
        return taken.pieces

    async def _next_by(self, deadline: float) -> Sequence[Piece] | None:
        """The same; None when no token has come by then (on the loop's clock)."""
        try:
            async with asyncio.timeout_at(deadline):
                return await self._next()
        except TimeoutError:
            return None

    def _frames(self, pieces: Sequence[Piece], continuous: bool) -> bytes:
        if not continuous:
            return b"".join(self._wire.text(p.index, p.text, finish_reason=p.finish) for p in pieces)
        usage = self._usage()
        return b"".join(
            self._wire.chunk(p.index, self._delta(p.text), finish_reason=p.finish, usage=usage) for p in pieces
        )

    def _delta(self, text: str) -> dict[str, JSON]:
        return {"content": text} if self._wire.dialect is Dialect.CHAT else {"text": text}

    def _usage(self) -> Usage:
        return Usage(prompt=self._prompt_tokens, completion=self._output.completion_tokens)


def _now() -> float:
    return asyncio.get_running_loop().time()
