"""Sends answers: the same pieces as a stream of events, or folded into one JSON body."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from aiohttp import web

from engine.messages import Logprobs
from engine.server.answering.best_of import the_best
from engine.server.answering.choice_text import ChoiceText
from engine.server.answering.output import Output, Piece
from engine.server.router import Ticket
from nproxy.openai import request_id
from nproxy.openai.errors import ApiError
from nproxy.openai.usage import Usage
from nproxy.openai.wire import PING, STREAM_HEADERS

_WRITE_SECONDS = 60.0
_HEADERS_AFTER_SECONDS = 30.0  # a stream without any event by then begins nevertheless, with a ping
_MUCH = 2048  # tokens; writing about more at once would block the event loop
_PING_SECONDS = 15.0  # the longest silence in a stream that has begun

log = logging.getLogger("engine.server")


class Writing(Protocol):
    """How one endpoint writes pieces and whole choices; see Writer, and the responses' own."""

    def prelude(self) -> bytes:
        """Return what a stream begins with."""

    def chunk(self, piece: Piece, usage: Usage | None = None) -> bytes:
        """Return one piece; usage: the running total, if each chunk carries it."""

    def end(self, usage: Usage) -> bytes:
        """Return what a stream ends with when all choices are done."""

    def failure(self, error: ApiError, unsent: bytes) -> bytes:
        """Return what a stream ends with after an error. unsent: the prelude, if it was not sent yet; else empty."""

    def answer(
        self, choices: Sequence[ChoiceText], usage: Usage, prompt_logprobs: Sequence[Sequence[Logprobs | None] | None]
    ) -> bytes:
        """Return the whole answer instead of a stream; `prompt_logprobs`: of each prompt, if they were computed."""


class Answer:
    """One request's answer while it is sent. prompt_tokens: of all its prompts, each counted once."""

    def __init__(self, writer: Writing, ticket: Ticket, output: Output, prompt_tokens: int) -> None:
        self._writer = writer
        self._ticket = ticket
        self._output = output
        self._prompt_tokens = prompt_tokens

    async def whole(self, n: int) -> bytes:
        """Wait for all choices and return the n best of each prompt, or all that were drawn, as one body.

        Raises ApiError if the core fails the request.
        """
        choices = [ChoiceText() for _ in range(self._output.choices)]
        while not self._output.finished:
            for piece in await self._next():
                choices[piece.index].add(piece)
        drawn = len(choices) // len(self._ticket.groups)
        shown = choices if n == drawn else the_best(choices, drawn, n)
        usage, prompts = self._usage(), self._output.prompt_logprobs
        reported = [one.reported for one in shown] + [prompt for prompt in prompts if prompt is not None]
        return await _written(reported, lambda: self._writer.answer(shown, usage, prompts))

    async def stream(self, request: web.Request, *, continuous: bool = False) -> web.StreamResponse:
        """Send events as they come, each step's in one write.

        The status is sent with the first tokens, or after half a minute without any. Before that an error is raised as
        ApiError with its own status; after that it is the stream's last event. continuous: each chunk has the usage so
        far.
        """
        pieces = await self._next_by(_now() + _HEADERS_AFTER_SECONDS)
        response = web.StreamResponse(headers=STREAM_HEADERS)
        try:
            await response.prepare(request)
            await self._events(response, pieces, continuous)
        except Exception as error:  # the status may have been sent, so the stream can only be broken off
            if not isinstance(error, (TimeoutError, ConnectionError)):  # the client stalled or disconnected
                log.exception("stream %s failed", response.headers[request_id.HEADER])
            if request.transport is not None:
                request.transport.abort()
        return response

    async def _events(self, response: web.StreamResponse, pieces: Sequence[Piece] | None, continuous: bool) -> None:
        """Write the stream from `pieces` on; None stands for a silence that was long enough for a ping."""
        prelude = self._writer.prelude()
        written = _now()
        try:
            while not self._output.finished:
                if pieces is None:
                    data = PING
                else:
                    data, prelude = prelude + await self._frames(pieces, continuous), b""
                if data:
                    async with asyncio.timeout(_WRITE_SECONDS):
                        await response.write(data)
                    written = _now()
                pieces = await self._next_by(written + _PING_SECONDS)
            data = prelude + await self._frames(pieces or (), continuous) + self._writer.end(self._usage())
        except ApiError as error:
            data = self._writer.failure(error, prelude)
        async with asyncio.timeout(_WRITE_SECONDS):
            await response.write_eof(data)

    async def _next(self) -> Sequence[Piece]:
        """Wait for events and return their pieces; there may be nothing to show yet."""
        taken = self._output.take(await self._ticket.inbox.take())
        self._ticket.cut(taken.cut)
        self._ticket.over = self._output.finished
        return taken.pieces

    async def _next_by(self, deadline: float) -> Sequence[Piece] | None:
        """Like `_next`; None if nothing has come by the deadline (on the loop's clock)."""
        try:
            async with asyncio.timeout_at(deadline):
                return await self._next()
        except TimeoutError:
            return None

    async def _frames(self, pieces: Sequence[Piece], continuous: bool) -> bytes:
        usage = self._usage() if continuous else None
        reported = [piece.reported for piece in pieces]
        return await _written(reported, lambda: b"".join([self._writer.chunk(piece, usage) for piece in pieces]))

    def _usage(self) -> Usage:
        reasoned = self._output.reasoning_tokens
        return Usage(
            prompt=self._prompt_tokens,
            completion=self._output.completion_tokens,
            prompt_details={"cached_tokens": self._output.cached_tokens},
            completion_details={"reasoning_tokens": reasoned} if reasoned else None,
        )


async def _written(reported: Sequence[Sequence[object]], write: Callable[[], bytes]) -> bytes:
    """Return what `write` writes; in a thread if it has many tokens to write about."""
    return await asyncio.to_thread(write) if sum(map(len, reported)) > _MUCH else write()


def _now() -> float:
    return asyncio.get_running_loop().time()
