"""What the load client accepts as right and rejects as wrong: a bar is only as good as its checks."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from bench.load.__main__ import main
from bench.load.ask import Ask, Outcome
from bench.load.bars import BARS
from bench.load.client import Client
from bench.load.talk import MOST_TOKENS, RING, WIDTH, start, text, token, written
from bench.load.tape import Histogram, Tape
from tests.fakes.upstream import raw_server

ASK = Ask(seed=3, n=2, tokens=2)


def event(document: object) -> bytes:
    return b"data: " + json.dumps(document, ensure_ascii=False).encode() + b"\n\n"


def choice(index: int, said: str | None = None, finish: str | None = None) -> bytes:
    delta = {} if said is None else {"content": said}
    return event({"choices": [{"index": index, "delta": delta, "finish_reason": finish}]})


def right() -> list[bytes]:
    """Return the events of a right answer to ASK."""
    said = [choice(index, token(3 + index, number)) for number in range(2) for index in range(2)]
    ends = [choice(index, finish="length") for index in range(2)]
    return [*said, *ends, event({"choices": [], "usage": usage(4)}), b"data: [DONE]\n\n"]


def usage(completion: int) -> dict[str, int]:
    return {"prompt_tokens": 7, "completion_tokens": completion, "total_tokens": 7 + completion}


@asynccontextmanager
async def answering(sent: bytes, *, end: bytes = b"0\r\n\r\n", piece: int | None = None) -> AsyncIterator[Client]:
    """Give a client of a server that answers every request with a stream of these bytes."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"Content-Length: (\d+)", head)
        assert length is not None
        await reader.readexactly(int(length[1]))
        answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n%b" % (len(sent), sent, end)
        for at in range(0, len(answer), piece or len(answer)):
            writer.write(answer[at : at + (piece or len(answer))])
            await writer.drain()
            await asyncio.sleep(0)
        if not end:
            return
        await reader.read()

    async with raw_server(handle) as url:
        client = Client("127.0.0.1", int(url.rsplit(":", 1)[1].removesuffix("/v1")), Tape(), hang=5.0)
        yield client
        client.close()


async def outcome_of(events: list[bytes], **how: object) -> Outcome:
    async with answering(b"".join(events), **how) as client:  # type: ignore[arg-type]
        return await client.ask(ASK)


@pytest.mark.parametrize("piece", [None, 1, 7])
async def test_a_right_answer(piece: int | None) -> None:
    assert (await outcome_of(right(), piece=piece)).kind == "ok"


CHANGES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "a letter": lambda events: [choice(0, "?????"), *events[1:]],
    "the sibling's text": lambda events: [choice(1, token(3, 0)), *events[1:]],
    "a token left out": lambda events: events[1:],
    "a token twice": lambda events: [events[0], *events],
    "no finish": lambda events: [*events[:4], *events[5:]],
    "two finishes": lambda events: [*events[:5], *events[4:]],
    "another finish": lambda events: [*events[:4], choice(0, finish="stop"), *events[5:]],
    "no usage": lambda events: [*events[:6], events[7]],
    "another usage": lambda events: [*events[:6], event({"choices": [], "usage": usage(3)}), events[7]],
    "no [DONE]": lambda events: events[:-1],
    "[DONE] early": lambda events: [*events[:3], events[-1]],
    "text behind [DONE]": lambda events: [*events, events[0]],
    "no JSON": lambda events: [b"data: {\n\n", *events],
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_wrong_answer(change: str) -> None:
    outcome = await outcome_of(CHANGES[change](right()))
    assert outcome.kind == "wrong", outcome


async def test_an_error_event_is_an_error_and_an_early_end_a_cut() -> None:
    failed = event({"error": {"message": "no more", "type": "server_error"}})
    assert (await outcome_of([*right()[:2], failed])).kind == "error"
    assert (await outcome_of(right()[:3], end=b"")).kind == "cut"


async def test_a_silent_server_is_a_hang() -> None:
    async with answering(b"".join(right()[:2]), end=b"1") as client:
        client._hang = 0.05
        assert (await client.ask(ASK)).kind == "hang"


@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
async def test_a_client_that_leaves_does(how: str) -> None:
    async with answering(b"".join(right()[:2]), end=b"1") as client:
        assert (await client.ask(Ask(3, 2, 2, leave=0.02, how=how))).kind == "left"  # type: ignore[arg-type]


def test_every_text_is_a_cut_of_the_ring() -> None:
    for seed in range(0, 10_000, 37):
        assert "".join(token(seed, number) for number in range(9)) == text(seed, 9)
        assert json.loads(b'"' + written(text(seed, 9)) + b'"') == RING[start(seed) :][: 9 * WIDTH]
    assert len(text(65_535, MOST_TOKENS)) == MOST_TOKENS * WIDTH


def test_percentiles_are_right_within_their_class() -> None:
    histogram = Histogram()
    for number in range(1, 1001):
        histogram.add(number / 1000)
    for share in (0.5, 0.99):
        found = histogram.milliseconds(share)
        assert found is not None
        assert 1000 * share <= found <= 1000 * share * 1.05
    assert Histogram().milliseconds(0.5) is None


def test_its_help_can_be_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["bench.load", "--help"])
    with pytest.raises(SystemExit):
        main()
    assert set(BARS) <= set(re.findall(r"\w+", capsys.readouterr().out))
