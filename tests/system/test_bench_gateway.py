"""bench/gateway: what its client accepts and rejects, what its upstream sends, and the harness with nproxy alone."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from bench.gateway import page, turns
from bench.gateway.__main__ import run
from bench.gateway.cases import CASES, Case
from bench.gateway.figures import cell
from bench.gateway.measuring import play
from bench.gateway.peers import PEERS, Running
from bench.gateway.programs import Told, ask, upstream
from tests.fakes.upstream import raw_server
from tests.ports import free_port
from tests.real.processes import ROOT

TWO = Case("", connections=1, n=2, chunks=2, answers=1)
WHOLE = replace(TWO, stream=False)


def event(document: object, **how: Any) -> bytes:
    return b"data: " + json.dumps(document, **how).encode() + b"\n\n"


def choice(index: int, said: str | None = None, finish: str | None = None) -> dict[str, Any]:
    delta = {} if said is None else {"content": said}
    return {"choices": [{"index": index, "delta": delta, "finish_reason": finish}]}


DONE = b"data: [DONE]\n\n"
RIGHT = [event(choice(index, " some")) for _ in range(2) for index in range(2)]
RIGHT += [event(choice(index, finish="stop")) for index in range(2)] + [DONE]
MESSAGES = [
    {"index": index, "message": {"role": "assistant", "content": " some many"}, "finish_reason": "stop"}
    for index in range(2)
]
JSON = json.dumps({"choices": MESSAGES}).encode()

SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
JSON_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def chunked(head: bytes, *parts: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    return (
        head
        + b"Transfer-Encoding: chunked\r\n\r\n"
        + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
        + end
    )


def sized(head: bytes, body: bytes) -> bytes:
    return head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)


async def told(answer: bytes, case: Case = TWO, *, piece: int = 1 << 20, close: bool = False) -> Told:
    """Return what the client reports of this answer, sent in pieces of `piece` bytes."""
    writers = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = re.search(rb"Content-Length: (\d+)", head)
            assert length is not None
            await reader.readexactly(int(length[1]))
            for at in range(0, len(answer), piece):
                writer.write(answer[at : at + piece])
                await writer.drain()
                await asyncio.sleep(0)
            if close:
                return

    async with raw_server(handle) as url:
        port = int(url.rsplit(":", 1)[1].removesuffix("/v1"))
        found = await asyncio.to_thread(ask, case, port, case.request(port, {}), 0.3)
        for writer in writers:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
        return found


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
@pytest.mark.parametrize(
    "answer",
    [
        chunked(SSE_HEAD, *RIGHT),
        chunked(SSE_HEAD, b"".join(RIGHT)),
        sized(SSE_HEAD, b": hello\n\n" + b"".join(RIGHT).replace(b"\n", b"\r\n")),
        chunked(SSE_HEAD, b"".join(RIGHT).replace(b": ", b":")),
        chunked(SSE_HEAD, event({"choices": [], "usage": {"total_tokens": 4}}), *RIGHT),
        chunked(SSE_HEAD, event(choice(0, "")), *RIGHT),
        chunked(
            SSE_HEAD,
            *(event({"choices": [{"delta": {"content": " some many"}, "index": index}]}) for index in (1, 0)),
            *RIGHT[4:],
        ),
    ],
)
async def test_a_right_stream(answer: bytes, piece: int) -> None:
    found = await told(answer, piece=piece)
    assert (found.errors, found.all.answers, found.all.chunks) == ({}, 1, 4), found.complaint


@pytest.mark.parametrize("piece", [1, 1 << 20])
@pytest.mark.parametrize("form", [chunked, sized])
async def test_a_right_whole_answer(form: Callable[[bytes, bytes], bytes], piece: int) -> None:
    found = await told(form(JSON_HEAD, JSON), WHOLE, piece=piece)
    assert (found.errors, found.all.answers, found.all.chunks) == ({}, 1, 4), found.complaint


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (chunked(SSE_HEAD, *RIGHT[1:]), "incomplete"),
        (chunked(SSE_HEAD, RIGHT[0], *RIGHT), "incomplete"),
        (chunked(SSE_HEAD, *RIGHT[:4], *RIGHT[5:]), "incomplete"),
        (chunked(SSE_HEAD, *RIGHT[:5], *RIGHT[4:]), "incomplete"),
        (chunked(SSE_HEAD, *RIGHT[:-1]), "incomplete"),
        (chunked(SSE_HEAD, *RIGHT, RIGHT[0]), "broken"),
        (chunked(SSE_HEAD, event(choice(2, " some")), *RIGHT), "broken"),
        (chunked(SSE_HEAD, *RIGHT[:3], event({"error": {"message": "no"}}), *RIGHT[3:]), "broken"),
        (chunked(SSE_HEAD, *RIGHT[:3], end=b"hello\r\n"), "broken"),
        (chunked(SSE_HEAD, *RIGHT, end=b""), "cut"),
        (chunked(SSE_HEAD, *RIGHT)[:40], "cut"),
        (b"", "cut"),
        (sized(SSE_HEAD.replace(b"200", b"503"), b"".join(RIGHT)), "status"),
        (sized(SSE_HEAD, b"".join(RIGHT[:-1])), "incomplete"),
    ],
)
async def test_a_wrong_stream(answer: bytes, kind: str) -> None:
    found = await told(answer, close=True)
    assert set(found.errors) == {kind} and found.all.answers == 0
    assert found.complaint.startswith("status ")


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (JSON.replace(b" some many", b" some", 1), "incomplete"),
        (JSON.replace(b'"index": 1', b'"index": 0'), "incomplete"),
        (JSON.replace(b'"stop"', b"null", 1), "incomplete"),
        (json.dumps({"choices": MESSAGES[:1]}).encode(), "incomplete"),
        (b'{"error": {"message": "no"}}', "broken"),
    ],
)
async def test_a_wrong_whole_answer(body: bytes, kind: str) -> None:
    assert set((await told(sized(JSON_HEAD, body), WHOLE, close=True)).errors) == {kind}


async def test_connections_that_close_behind_each_answer_are_opened_anew() -> None:
    closed = await told(SSE_HEAD + b"\r\n" + b"".join(RIGHT), replace(TWO, answers=3), close=True)
    assert (closed.errors, closed.all.answers, closed.reconnects > 0) == ({}, 3, True), closed.complaint


def test_the_upstream_speaks_as_openai_does() -> None:
    with (
        upstream() as (port, _),
        OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client,
    ):
        assert [model.id for model in client.models.list()] == ["bench"]
        asked: dict[str, Any] = {"model": "bench", "messages": [{"role": "user", "content": "chunks=20 pace=200"}]}
        begun = time.monotonic()
        events = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
        assert time.monotonic() - begun >= 20 / 200 * 0.9
        assert [one.choices[0].delta.content for one in events[:-2]] == [
            events[at].choices[0].delta.content for at in range(20)
        ]
        assert events[0].choices[0].delta.role == "assistant"
        assert (events[-2].choices[0].finish_reason, events[-1].choices) == ("stop", [])
        assert events[-1].usage is not None and events[-1].usage.completion_tokens == 20
        whole = client.chat.completions.create(**asked)
        text = "".join(one.choices[0].delta.content or "" for one in events[:-1])
        assert len(text) == len(whole.choices[0].message.content or "") == 20 * 5


def test_the_upstream_thinks_before_it_begins_a_stream() -> None:
    with (
        upstream() as (port, _),
        OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client,
    ):
        begun = time.monotonic()
        for _ in range(3):
            messages: Any = [{"role": "user", "content": "chunks=3 pace=1000 think=50"}]
            events = list(client.chat.completions.create(model="bench", messages=messages, stream=True))
            assert [bool(one.choices[0].delta.content) for one in events] == [True, True, True, False]
        assert time.monotonic() - begun >= 3 * 0.05


def test_the_upstream_takes_a_chunked_body_and_questions_behind_each_other() -> None:
    with upstream() as (port, _), httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
        for _ in range(3):
            answer = client.post("/v1/chat/completions", content=iter([b'{"messages": "chunks=3"}']))
            assert len(answer.json()["choices"][0]["message"]["content"]) == 15
            assert client.get("/health").status_code == 200


def test_more_than_a_reader_takes_at_once_comes_whole() -> None:
    """Send and receive windows fill, and the upstream waits for room."""
    with upstream() as (port, _), httpx.Client(trust_env=False) as client:
        question = {"messages": "chunks=100000", "stream": True}
        with client.stream("POST", f"http://127.0.0.1:{port}/v1/chat/completions", json=question) as answer:
            time.sleep(0.3)
            lines = [line for line in answer.iter_lines() if line]
    assert len(lines) == 100_000 + 2 and lines[-1] == "data: [DONE]"


async def test_a_gateway_that_is_gone_is_an_error_and_no_end_of_the_run() -> None:
    port, ended = free_port(), subprocess.Popen(["true"])
    ended.wait()
    with upstream() as (running, _):
        for gateway in (Running(port, None), Running(running, ended.pid)):
            found = await asyncio.to_thread(play, replace(TWO, n=1), gateway, [], 0.1)
            assert found.errors == {"gone": 1} and found.complaint
            assert str(cell([found])).startswith("answers that were not whole: gone; the first: ")


@pytest.mark.timeout(300)
def test_a_gateway_that_does_not_end_costs_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def stubborn(port: int, folder: Path) -> Iterator[Running]:
        yield Running(port, None)
        raise RuntimeError("did not end")

    monkeypatch.setattr("bench.gateway.__main__.FRONTS", {"direct": stubborn})
    record = run(["direct"], {"first": replace(CASES["first"], answers=3)}, rounds=1, seconds=0.1)
    assert record["peers"]["direct"]["cases"]["first"]["rate"] > 0
    assert "direct: did not end" in capsys.readouterr().err


@pytest.mark.timeout(300)
def test_checkouts_in_turns_all_of_them_started_anew() -> None:
    name, here = turns.checkout(str(ROOT))
    cases = {"first": replace(CASES["first"], answers=3), "whole-64": replace(CASES["whole-64"], connections=2)}
    found = turns.play({"bare aiohttp": PEERS["bare aiohttp"], name: here}, cases, starts=2, rounds=2, seconds=0.1)
    assert all([*map(len, gateways.values())] == [4, 4] for gateways in found.values())
    assert all(one.cpu_us > 1 for gateways in found.values() for rounds in gateways.values() for one in rounds)
    assert f"| first | {name} |" in turns.table(found)


@pytest.mark.timeout(300)
def test_the_harness_with_nproxy_alone() -> None:
    cases = {name: replace(case, connections=min(4, case.connections)) for name, case in CASES.items()}
    cases = {name: replace(case, answers=min(5, case.answers)) for name, case in cases.items()}
    record = run(["direct", "nproxy"], cases, rounds=1, seconds=0.2)
    for name in ("direct", "nproxy"):
        found = record["peers"][name]["cases"]
        assert {case: cell.get("reason") for case, cell in found.items()} == dict.fromkeys(CASES)
        assert all(cell["rate"] > 0 for cell in found.values())
    ours = record["peers"]["nproxy"]
    assert all(cell["cpu_us"] > 1 for cell in ours["cases"].values())
    assert 20 < ours["rss_mib"] < 1000
    assert "| nproxy |" in page.tables(json.loads(json.dumps(record)))
