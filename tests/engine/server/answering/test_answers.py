"""An answer on its way to the client, before a core that the test plays; in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web

from engine.channel import CoreClient
from engine.messages import Abort, Logprobs, Started, TokenDrawn
from engine.server.answering.answers import Answer
from engine.server.answering.choice_text import ChoiceText, text_of
from engine.server.answering.output import Manner, Output, Piece
from engine.server.router import Inbox, Ticket
from engine.text.detokenizer import TokenBytes
from nproxy.openai.errors import ApiError, invalid_request
from nproxy.openai.usage import Usage
from nproxy.openai.wire import PING
from tests.virtual_time import run

A, HALF, OTHER_HALF, DOT = range(4)
TABLE = TokenBytes([b"a", b"\xf0\x9f", b"\x98\x80", b"."])


class Plain:
    """Writes as little as there is: the texts, between < and >; keeps every usage that it is given."""

    def __init__(self) -> None:
        self.usages: list[Usage | None] = []

    def prelude(self) -> bytes:
        return b"<"

    def chunk(self, piece: Piece, usage: Usage | None = None) -> bytes:
        self.usages.append(usage)
        return text_of(piece.parts).encode()

    def end(self, usage: Usage) -> bytes:
        self.usages.append(usage)
        return b">"

    def failure(self, error: ApiError, unsent: bytes) -> bytes:
        return unsent + f"!{error.message}".encode()

    def answer(
        self, choices: Sequence[ChoiceText], usage: Usage, prompt_logprobs: Sequence[Sequence[Logprobs | None] | None]
    ) -> bytes:
        self.usages.append(usage)
        return b"|".join([text_of(choice.parts).encode() for choice in choices])


class Scene:
    """One request of two choices for a prompt of three tokens; what is written to its client, and when."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **manner: Any) -> None:
        scene, self.loop = self, asyncio.get_running_loop()
        self.written: list[tuple[float, bytes]] = []
        self.closes = False
        self.aborts: list[Abort] = []

        class Response(web.StreamResponse):
            async def prepare(self, request: web.BaseRequest) -> None:
                pass

            async def write(self, data: bytes | bytearray | memoryview) -> None:
                scene.written.append((scene.loop.time() - scene.began, bytes(data)))

            async def write_eof(self, data: bytes = b"") -> None:
                await self.write(data)

            def force_close(self) -> None:
                scene.closes = True

        monkeypatch.setattr(web, "StreamResponse", Response)
        self.began = self.loop.time()
        self.writer, self.inbox = Plain(), Inbox()
        self.ticket = Ticket(cast(CoreClient, SimpleNamespace(abort=self.aborts.append)), (7,), self.inbox)
        self.answer = Answer(self.writer, self.ticket, Output((7,), TABLE, [[Manner(**manner)] * 2]), prompt_tokens=3)

    def draws(self, at: float, *drawn: tuple[int, int, str | None]) -> None:
        """The core draws these in one step: (choice, token, finish)."""
        self.loop.call_later(at, self.inbox.put, [TokenDrawn(7, *one) for one in drawn])

    async def stream(self, *, continuous: bool = False) -> None:
        await self.answer.stream(cast(web.Request, SimpleNamespace(transport=None)), continuous=continuous)


def test_what_comes_in_one_step_is_one_write_and_a_stream_that_is_soon_over_begins_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene() -> None:
        steps = Scene(monkeypatch)
        steps.draws(1, (0, A, None), (1, DOT, None))
        steps.draws(2, (0, DOT, "length"))
        steps.draws(3, (1, A, "stop"))
        await steps.stream()
        assert steps.written == [(1, b"<a."), (2, b"."), (3, b">")]
        assert (steps.ticket.over, steps.closes, steps.aborts) == (True, False, [])
        once = Scene(monkeypatch)
        once.draws(1, (0, A, "length"), (1, DOT, "length"))
        await once.stream()
        assert once.written == [(1, b"<a.>")]

    run(scene())


def test_P14_pings_come_only_in_silence_and_a_token_that_shows_nothing_is_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene() -> None:
        steps = Scene(monkeypatch)
        steps.draws(1, (0, HALF, None))
        steps.draws(11, (0, OTHER_HALF, None))
        steps.draws(20, (1, HALF, None))
        steps.draws(50, (0, DOT, "length"), (1, OTHER_HALF, "length"))
        await steps.stream()
        pings = [(26, PING), (41, PING)]  # 15 seconds after the last write each
        assert steps.written == [(1, b"<"), (11, "😀".encode()), *pings, (50, ".😀>".encode())]
        late = Scene(monkeypatch)
        late.draws(46, (0, A, "length"), (1, A, "length"))
        await late.stream()
        assert late.written == [(30, PING), (45, PING), (46, b"<aa>")]

    run(scene())


def test_an_error_before_the_first_token_is_the_requests_and_one_behind_it_the_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene() -> None:
        early = Scene(monkeypatch)
        early.inbox.fail(invalid_request("No."))
        with pytest.raises(ApiError, match="No"):
            await early.stream()
        assert early.written == []
        late = Scene(monkeypatch)
        late.draws(1, (0, A, None))
        late.loop.call_later(2, late.inbox.fail, invalid_request("No."))
        await late.stream()
        assert (late.written, late.closes, late.ticket.over) == ([(1, b"<a"), (2, b"!No.")], False, False)
        silent = Scene(monkeypatch)
        silent.loop.call_later(40, silent.inbox.fail, invalid_request("No."))
        await silent.stream()
        assert silent.written == [(30, PING), (40, b"<!No.")]

    run(scene())


@pytest.mark.parametrize("streaming", [True, False])
def test_what_a_stop_string_ends_is_cut_in_the_core_at_once(monkeypatch: pytest.MonkeyPatch, streaming: bool) -> None:
    async def scene() -> None:
        steps = Scene(monkeypatch, stops=(".",))
        steps.draws(1, (0, DOT, None), (1, A, None))
        steps.draws(2, (1, A, "length"))
        asking = asyncio.create_task(steps.stream() if streaming else steps.answer.whole(2))
        await asyncio.sleep(1.5)
        assert (steps.aborts, steps.ticket.over) == ([Abort(7, (0,))], False)
        await asking
        assert (len(steps.aborts), steps.ticket.over) == (1, True)

    run(scene())


def test_E_usage_counts_tokens_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        steps = Scene(monkeypatch)
        steps.inbox.put([Started(7, 2)])
        for at in (1, 2):
            steps.draws(at, (0, A, "length" if at == 2 else None), (1, A, "length" if at == 2 else None))
        await steps.stream(continuous=True)
        told = [Usage(3, count, {"cached_tokens": 2}) for count in (2, 2, 4, 4, 4)]  # the last one is the end's
        assert steps.writer.usages == told
        quiet = Scene(monkeypatch)
        quiet.draws(1, (0, A, "length"), (1, A, "length"))
        await quiet.stream()
        assert quiet.writer.usages == [None, None, Usage(3, 2, {"cached_tokens": 0})]
        whole = Scene(monkeypatch)
        whole.draws(1, (0, A, "length"), (1, DOT, "length"))
        assert await whole.answer.whole(2) == b"a|."
        assert whole.writer.usages == [Usage(3, 2, {"cached_tokens": 0})]

    run(scene())
