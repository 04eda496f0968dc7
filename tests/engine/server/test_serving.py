"""The server in this process, before a real core process whose runner is a hash: what must end, ends."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import socket
import threading
import uuid
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import httpx
import pytest
from aiohttp import web

from engine.channel import CoreClient
from engine.config import EngineConfig
from engine.server import http, serving
from engine.server.answering import answers
from engine.server.answering.logprobs import Spelling
from engine.server.asking import order
from engine.server.endpoints import common
from engine.server.http import listening
from engine.server.metrics import Metrics
from engine.server.router import Router
from engine.server.serving import Serving
from engine.text.detokenizer import TokenBytes
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from nproxy.openai.errors import ApiError, engine_unavailable
from tests.clients import lines_of
from tests.engine.asking import answer, ask, chat, folded, post, refused, stream, streamed, texts
from tests.engine.conftest import MODEL
from tests.engine.server.letters import LETTERS
from tests.fakes.runner import ready


@asynccontextmanager
async def engine(
    tokenizer: Tokenizer, path: Path, *, runner: str = "hash", stall: float = 60.0, **settings: Any
) -> AsyncIterator[Serving]:
    """The server on a Unix socket; its core takes 512 tokens, in 256 blocks."""
    config = EngineConfig(runner, **{"max_batch_tokens": 64, "max_sequences": 16, "block_size": 4, **settings})
    core = await CoreClient.start(config, "tests.fakes.runner:load")
    try:
        served = Serving(config, MODEL, tokenizer, stall)
        metrics = Metrics(core.ready)
        router = Router(core, metrics)
        served.take_core(router, metrics)
        async with listening(served, uds=path, host="", port=0), asyncio.TaskGroup() as group:
            run = group.create_task(router.run())
            yield served
            run.cancel()
        served.close()
    finally:
        await core.close()


@asynccontextmanager
async def loading(path: Path, **settings: Any) -> AsyncIterator[Serving]:
    """The server on a Unix socket, whose core is not there yet."""
    served = Serving(EngineConfig("none", **settings), MODEL, LETTERS)
    async with listening(served, uds=path, host="", port=0):
        yield served
    served.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "engine.sock"


@asynccontextmanager
async def client_of(path: Path) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.AsyncHTTPTransport(uds=str(path))
    async with httpx.AsyncClient(transport=transport, base_url="http://engine", timeout=20.0) as opened:
        yield opened


async def test_choices_come_through(path: Path) -> None:
    async with engine(LETTERS, path), client_of(path) as client:
        live = await streamed(client, n=3, max_tokens=20, ignore_eos=True)
        assert live.reasons == {0: ["length"], 1: ["length"], 2: ["length"]}
        assert live.done


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_the_address_that_is_told_can_be_asked(host: str) -> None:
    serving = Serving(EngineConfig("hash"), MODEL, LETTERS, 60.0)
    async with (
        listening(serving, uds=None, host=host, port=0) as address,
        httpx.AsyncClient(trust_env=False) as client,
    ):
        assert (await client.get(f"{address}/health")).status_code == 503, "it loads its model yet"
    serving.close()


async def test_a_client_that_leaves_as_its_stream_begins_is_no_failure(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    begin = web.StreamResponse.prepare

    async def left(response: web.StreamResponse, request: web.BaseRequest) -> Any:
        if request.transport is not None:
            request.transport.close()
        return await begin(response, request)

    async with engine(LETTERS, path) as served, client_of(path) as client:
        monkeypatch.setattr(web.StreamResponse, "prepare", left)
        with pytest.raises(httpx.TransportError):
            await client.post("/v1/chat/completions", json=chat(max_tokens=300, ignore_eos=True, stream=True))
        assert await served.until_idle(5.0)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


OWN: list[dict[str, Any]] = [{}, {"max_tokens": 3}, {"stop": [*"abcdefghijklmnop"], "max_tokens": 300}, {"seed": 100}]


@pytest.mark.parametrize("streaming", [True, False])
async def test_choice_params_end_and_draw_each_choice_by_itself(path: Path, streaming: bool) -> None:
    """The runner draws by hashes of the seed, one token in four a letter: one of sixteen letters comes in time."""
    common = {"seed": 5, "max_tokens": 20, "ignore_eos": True}
    async with engine(LETTERS, path), client_of(path) as client:
        plain = [
            texts(await ask(client, **{**common, **own, "seed": seed}))[0]
            for own, seed in ((OWN[0], 5), (OWN[1], 6), (OWN[2], 7), (OWN[0], 100))
        ]
        if streaming:
            options = {"include_usage": True}
            live = await streamed(client, n=4, choice_params=OWN, stream_options=options, **common)
            got, reasons = [live.texts[index] for index in range(4)], live.reasons
            usage = live.chunks[-1]["usage"]
        else:
            answered = await ask(client, n=4, choice_params=OWN, **common)
            got = texts(answered)
            reasons = {choice["index"]: [choice["finish_reason"]] for choice in answered["choices"]}
            usage = answered["usage"]
    assert got == plain
    assert reasons == {0: ["length"], 1: ["length"], 2: ["stop"], 3: ["length"]}
    assert 20 + 3 + 20 < usage["completion_tokens"] < 20 + 3 + 20 + 300


async def test_choice_params_hold_for_every_prompt(path: Path) -> None:
    own = [{"max_tokens": 2}, {"seed": 9}]
    body = {"model": MODEL, "prompt": [[5, 6], [7]], "n": 2, "max_tokens": 6, "seed": 1, "choice_params": own}
    async with engine(LETTERS, path), client_of(path) as client:
        both = await answer(client, "/v1/completions", {**body, "ignore_eos": True})
        for number, prompt in enumerate([[5, 6], [7]]):
            alone = await answer(client, "/v1/completions", {**body, "prompt": prompt, "ignore_eos": True})
            assert texts(both)[2 * number : 2 * number + 2] == texts(alone)
        assert both["usage"]["completion_tokens"] == 2 * (2 + 6)


async def test_choice_params_of_another_length_are_a_400(path: Path) -> None:
    async with engine(LETTERS, path), client_of(path) as client:
        status, error = await refused(client, "/v1/chat/completions", chat(n=3, choice_params=[{}]))
        assert (status, error["param"], error["code"]) == (400, "choice_params", "invalid_length")
        assert "1 entries" in error["message"]


async def test_a_group_that_can_never_fit_is_a_400(path: Path) -> None:
    # 256 blocks of one token: a prompt of 245 and sixteen choices find no room, wait as they may.
    body = {"model": MODEL, "prompt": [5] * 245, "n": 16, "max_tokens": 5}
    async with engine(LETTERS, path, block_size=1), client_of(path) as client:
        status, error = await refused(client, "/v1/completions", body)
        assert (status, error["code"]) == (400, "request_too_large")
        assert "blocks" in error["message"]


async def test_a_step_that_fails_is_a_500_without_a_traceback(path: Path) -> None:
    async with engine(LETTERS, path, runner="broken"), client_of(path) as client:
        status, error = await refused(client, "/v1/chat/completions", chat())
        assert (status, error["type"]) == (500, "server_error")


@pytest.mark.parametrize(("given", "taken"), [("a-B.9_" * 21, True), ("x" * 129, False), ("a b", False), ("", False)])
async def test_O2_the_request_id_comes_back(path: Path, given: str, taken: bool) -> None:
    async with engine(LETTERS, path), client_of(path) as client:
        for call, status in (
            (client.post("/v1/chat/completions", json=chat(), headers={"x-request-id": given}), 200),
            (client.post("/v1/chat/completions", json=chat(stream=True), headers={"x-request-id": given}), 200),
            (client.post("/v1/chat/completions", json=chat(n=0), headers={"x-request-id": given}), 400),
            (client.get("/v1/nothing", headers={"x-request-id": given}), 404),
            (client.get("/health", headers={"x-request-id": given}), 200),
        ):
            answered = await call
            assert answered.status_code == status
            said = answered.headers["x-request-id"]
            assert (said == given) if taken else uuid.UUID(said), said


async def test_O2_every_request_without_an_id_gets_its_own(path: Path) -> None:
    async with engine(LETTERS, path), client_of(path) as client:
        made = [(await client.get("/health")).headers["x-request-id"] for _ in range(3)]
        assert len(set(made)) == 3


@pytest.mark.parametrize(
    ("encoding", "body", "status"),
    [
        ("gzip", gzip.compress(json.dumps(chat()).encode(), mtime=0), 200),
        ("deflate", zlib.compress(json.dumps(chat()).encode()), 200),
        ("identity", json.dumps(chat()).encode(), 200),
        ("gzip", json.dumps(chat()).encode(), 400),
        ("gzip", gzip.compress(json.dumps(chat()).encode(), mtime=0)[:-4], 400),
        ("gzip", gzip.compress(bytes(11 << 20), mtime=0), 413),
        ("foo", json.dumps(chat()).encode(), 415),
        ("br", json.dumps(chat()).encode(), 415),
        ("zstd", b"(\xb5/\xfd", 415),
    ],
)
async def test_O5_bodies_are_decoded_or_refused(path: Path, encoding: str, body: bytes, status: int) -> None:
    async with engine(LETTERS, path), client_of(path) as client:
        for url in ("/v1/chat/completions", "/v1/responses") if status != 200 else ("/v1/chat/completions",):
            answered = await client.post(url, content=body, headers={"content-encoding": encoding})
            assert answered.status_code == status, answered.text
            assert status == 200 or answered.json()["error"]["type"] == "invalid_request_error"


async def test_O5_a_malformed_body_is_the_clients_error(path: Path) -> None:
    async with engine(LETTERS, path):
        reader, writer = await asyncio.open_unix_connection(str(path))
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: engine\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head + b"2\r\n{}\r\n")
        await asyncio.sleep(0)
        writer.write(b"no size\r\n")
        assert b" 400 " in await first_bytes(reader, b"\r\n\r\n")
        writer.close()


async def test_a_body_that_does_not_come_is_a_408(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "_BODY_SECONDS", 0.02)
    async with loading(path):
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: engine\r\ncontent-length: 9\r\n\r\n{")
        assert b" 408 " in await first_bytes(reader, b"\r\n")
        assert b"did not arrive in time" in await first_bytes(reader, b"}")
        writer.close()


async def first_bytes(reader: asyncio.StreamReader, end: bytes) -> bytes:
    async with asyncio.timeout(10):
        return await reader.readuntil(end)


@asynccontextmanager
async def streaming_from(path: Path, following: bytes = b"", **fields: object) -> AsyncIterator[asyncio.StreamReader]:
    """A plain connection that has asked for a stream, and then for something else."""
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(post("/v1/chat/completions", chat(stream=True, ignore_eos=True, **fields)) + following)
    try:
        yield reader
    finally:
        writer.close()


async def test_P14_a_stream_that_waits_pings(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "_PING_SECONDS", 0.05)
    async with engine(LETTERS, path, runner="stuck"), streaming_from(path, n=2, max_tokens=9) as reader:
        head = await first_bytes(reader, b"\r\n\r\n")
        assert b" 200 " in head
        got = await first_bytes(reader, b": ping\n\n\r\n8\r\n: ping\n\n")
        assert got.index(b"data: ") < got.index(b": ping")


async def test_P14_no_ping_before_the_headers_are_decided(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing at all comes before the time for headers; then the stream begins with a ping, and an end is an event."""
    monkeypatch.setattr(answers, "_PING_SECONDS", 0.05)
    monkeypatch.setattr(answers, "_HEADERS_AFTER_SECONDS", 0.4)
    then = b"GET /v1/models HTTP/1.1\r\nhost: engine\r\n\r\n"
    async with engine(LETTERS, path, runner="slow") as served, streaming_from(path, then, max_tokens=9) as reader:
        asked = asyncio.get_running_loop().time()
        head = await first_bytes(reader, b"\r\n\r\n")
        assert asyncio.get_running_loop().time() - asked >= 0.4
        assert b" 200 " in head
        assert await first_bytes(reader, b"\n\n") == b"8\r\n: ping\n\n"
        served.router.end(engine_unavailable("It is over."))
        rest = await first_bytes(reader, b"0\r\n\r\n")
        assert b"It is over." in rest
        assert b"[DONE]" not in rest
        assert (await first_bytes(reader, b"\r\n")).startswith(b"HTTP/1.1"), "the connection can be used again"


async def test_a_failure_before_the_headers_has_its_status(path: Path) -> None:
    async with engine(LETTERS, path, runner="slow") as served, streaming_from(path, max_tokens=9) as reader:
        while served.router.idle:
            await asyncio.sleep(0)
        served.router.end(engine_unavailable("It is over."))
        assert b" 503 " in await first_bytes(reader, b"\r\n\r\n")


async def test_L5_an_end_invents_no_finish_reason(path: Path) -> None:
    """The choice that ended has its reason; the one that is cut off has none, and the stream ends in an error."""
    own = [{"max_tokens": 1}, {"max_tokens": 9}]
    async with engine(LETTERS, path, runner="stuck") as served, client_of(path) as client:
        body = chat(n=2, choice_params=own, stream=True, ignore_eos=True)
        async with client.stream("POST", "/v1/chat/completions", json=body) as live:
            lines = lines_of(live)
            seen = []
            async for line in lines:
                seen.append(line)
                if '"finish_reason":"length"' in line:
                    break
            served.router.end(engine_unavailable("It is over."))
            whole = folded(seen + [line async for line in lines])
        assert whole.reasons == {0: ["length"]}
        assert whole.chunks[-1]["error"]["message"] == "It is over."
        assert not whole.done


async def test_health_tells_a_core_that_owes_a_step(path: Path) -> None:
    """Whether it waits in its first step or a later one; a core without work owes nothing, however long."""
    async with engine(LETTERS, path, runner="stuck", stall=0.2) as served, client_of(path) as client:
        await asyncio.sleep(0.3)
        assert (await client.get("/health")).status_code == 200
        await ask(client, max_tokens=1)  # its first step
        await asyncio.sleep(0.3)
        assert (await client.get("/health")).status_code == 200
        async with streaming_from(path, max_tokens=9) as reader:
            await first_bytes(reader, b"data: ")  # its second step; the third never ends
            assert (await client.get("/health")).status_code == 200
            while served.router.silence <= 0.2:
                await asyncio.sleep(0.02)
            said = await client.get("/health")
            assert (said.status_code, said.json()["error"]["code"]) == (503, "engine_stalled")
            assert (await client.get("/ready")).json() == said.json()


async def test_M1_a_stalled_reader_is_cut_off(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "_WRITE_SECONDS", 0.3)
    long_words = Tokenizer(LETTERS.backend, TokenBytes([b"x" * 4000] * 1000), LETTERS.template, 0)
    body = chat(n=2, max_tokens=400, stream=True, ignore_eos=True)
    async with engine(long_words, path) as served:
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(str(path))
            link.sendall(post("/v1/chat/completions", body))
            while served.router.idle:
                await asyncio.sleep(0)
            assert await served.until_idle(15.0)  # although nobody has read a byte
            assert served.router.idle
            link.settimeout(5.0)
            got = await asyncio.to_thread(everything, link)
        assert b"data: " in got
        assert b"[DONE]" not in got


def everything(link: socket.socket) -> bytes:
    """All that can still be read."""
    got = b""
    while more := link.recv(1 << 16):
        got += more
    return got


async def test_a_template_that_never_ends_is_given_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_PREPARE_SECONDS", 0.2)
    released = threading.Event()

    class Endless(ChatTemplate):
        def render(self, messages: object, variables: object, *, generation: bool = True) -> str:
            released.wait(20)
            return "late"

    slow = Tokenizer(LETTERS.backend, LETTERS.table, Endless("", {}), 0)
    async with engine(slow, path) as served, client_of(path) as client:
        try:
            status, error = await refused(client, "/v1/chat/completions", chat())
            assert (status, error["code"]) == (503, "overloaded")
            health = await client.get("/health")  # the event loop was never held up
            assert health.status_code == 200
            assert await served.until_idle(1.0)
        finally:
            released.set()


async def test_what_is_large_is_read_off_the_event_loop(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readers: list[str] = []
    plain = order.read_order

    def listened(*arguments: Any) -> Any:
        readers.append(threading.current_thread().name)
        return plain(*arguments)

    monkeypatch.setattr(http, "read_order", listened)
    async with engine(LETTERS, path), client_of(path) as client:
        await ask(client, max_tokens=1)
        await ask(client, max_tokens=1, user="x" * (64 << 10))
    assert readers[0] == threading.current_thread().name
    assert readers[1].startswith("prompts")


@pytest.mark.parametrize(("much", "in_thread"), [(2, True), (2048, False)])
async def test_what_tells_of_many_tokens_is_written_off_the_event_loop(
    path: Path, monkeypatch: pytest.MonkeyPatch, much: int, in_thread: bool
) -> None:
    writers: list[bool] = []
    legacy = Spelling.legacy

    def listened(spelling: Spelling, told: Any) -> Any:
        writers.append(threading.current_thread() is not threading.main_thread())
        return legacy(spelling, told)

    monkeypatch.setattr(answers, "_MUCH", much)
    monkeypatch.setattr(Spelling, "legacy", listened)
    body = {"model": MODEL, "prompt": [5, 6, 7], "echo": True, "logprobs": 1, "max_tokens": 0, "n": 2}
    async with engine(LETTERS, path), client_of(path) as client:
        whole = await answer(client, "/v1/completions", body)
        live = await stream(client, "/v1/completions", body)
    assert [len(choice["logprobs"]["tokens"]) for choice in whole["choices"]] == [3, 3]
    assert live.reasons == {0: ["length"], 1: ["length"]}
    assert set(writers) == {in_thread}


async def test_N3_all_prompts_of_a_stream_are_taken_or_none_is(path: Path) -> None:
    body = {"model": MODEL, "prompt": [5, 6, 7], "max_tokens": 400, "ignore_eos": True, "stream": True}
    async with (
        engine(LETTERS, path, runner="leisurely", max_sequences=2, max_queue=0),  # the first one takes 40 s
        client_of(path) as client,
        client.stream("POST", "/v1/completions", json=body) as long,
    ):
        lines = lines_of(long)  # kept, as httpx closes the connection once nobody reads
        await anext(lines)
        status, error = await refused(client, "/v1/completions", {**body, "prompt": [[1, 2], [3, 4]]})
        assert (status, error["code"]) == (429, "overloaded")
        assert "there is no room for 2 more now" in error["message"]


async def test_nobody_is_served_on_the_way_out(path: Path) -> None:
    async with engine(LETTERS, path) as served, client_of(path) as client:
        assert (await client.get("/ready")).status_code == 200
        served.draining = True
        status, error = await refused(client, "/v1/chat/completions", chat())
        assert (status, error["code"]) == (503, "engine_unavailable")
        late = await client.get("/ready")
        assert (late.status_code, late.json()["error"]["code"]) == (503, "engine_unavailable")
        assert (await client.get("/health")).status_code == 200  # it still works for those whom it has taken


async def test_requests_without_a_seed_take_theirs_from_the_settings(path: Path) -> None:
    answers = []
    for seed in (7, 7, 8):
        async with engine(LETTERS, path, seed=seed) as _, client_of(path) as client:
            answers.append([texts(await ask(client, n=2, max_tokens=20, ignore_eos=True)) for _ in range(2)])
    assert answers[0] == answers[1] != answers[2]
    assert answers[0][0] != answers[0][1]


async def test_a_request_that_was_prepared_while_the_core_ended_is_refused(path: Path) -> None:
    async with engine(LETTERS, path) as served, client_of(path) as client:
        served.router.end(engine_unavailable("It is over."))
        status, error = await refused(client, "/v1/chat/completions", chat())
        assert (status, error["message"]) == (503, "It is over.")
        assert served.router.idle


async def test_nobody_is_served_before_the_core_is_there(path: Path) -> None:
    async with loading(path) as served, client_of(path) as client:
        asked = [client.get(url) for url in ("/health", "/ready", "/metrics")]
        for call in (*asked, client.post("/v1/chat/completions", json=chat())):
            answered = await call
            assert (answered.status_code, answered.json()["error"]["code"]) == (503, "engine_unavailable")
            assert answered.headers["retry-after"] == "1"
        entry = {"id": MODEL, "object": "model", "created": served.started, "owned_by": "nproxy", "max_model_len": None}
        assert (await client.get("/v1/models")).json() == {"object": "list", "data": [entry]}


@pytest.mark.parametrize(("size", "status"), [(10 << 20, 400), ((10 << 20) + 1, 413)])
async def test_a_body_has_at_most_ten_mebibytes(path: Path, size: int, status: int) -> None:
    async with loading(path), client_of(path) as client:
        assert (await refused(client, "/v1/chat/completions", b" " * size))[0] == status


async def test_Q10_a_wrong_method_is_told_all_that_are_right(path: Path) -> None:
    async with loading(path), client_of(path) as client:
        answered = await client.post("/v1/models")
        assert (answered.status_code, answered.headers["allow"]) == (405, "GET, HEAD")
        assert answered.json()["error"]["code"] == "method_not_allowed"


async def test_a_path_that_is_not_served_has_the_code_that_the_gateway_gives_it(path: Path) -> None:
    async with loading(path), client_of(path) as client:
        answered = await client.post("/v1/moderations", json={"input": "a"})
        assert (answered.status_code, answered.json()["error"]["code"]) == (404, "unknown_url")


async def test_O2_what_is_no_http_is_answered_with_an_id_and_not_echoed(path: Path) -> None:
    async with loading(path):
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b"GET /<script>secret HTTP/9.9\r\nbad header\r\n\r\n")
        async with asyncio.timeout(10):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
    assert head.startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 "))
    headers = dict(line.split(": ", 1) for line in head.decode().lower().splitlines()[1:])
    assert (uuid.UUID(headers["x-request-id"]).version, headers["server"]) == (4, "nproxy")
    assert json.loads(body)["error"]["type"] == "invalid_request_error"
    assert b"secret" not in body


async def test_a_fault_of_the_server_is_logged_with_its_request_and_not_told(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("inner matters")

    monkeypatch.setattr(http, "_entry", broken)
    async with loading(path), client_of(path) as client:
        answered = await client.get("/v1/models", headers={"x-request-id": "mine"})
    assert (answered.status_code, answered.json()["error"]["code"]) == (500, "internal_error")
    assert "inner matters" not in answered.text
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.getMessage() == "request mine failed" and record.exc_info


async def test_the_metrics_count_the_steps_that_were_run(path: Path) -> None:
    async with engine(LETTERS, path), client_of(path) as client:
        await ask(client, max_tokens=3, ignore_eos=True)
        scraped = await client.get("/metrics")
    assert scraped.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "\nnproxy_engine_steps_total 3.0\n" in scraped.text


async def test_a_connection_that_nobody_asks_on_ends_with_the_server(path: Path) -> None:
    async with loading(path):
        reader, writer = await asyncio.open_unix_connection(str(path))
        writer.write(b"GET /v1/models HTTP/1.1\r\nhost: engine\r\n\r\n")
        await first_bytes(reader, b"]}")
    async with asyncio.timeout(10):
        assert not await reader.read()
    writer.close()
    assert not path.exists()


async def test_it_is_idle_once_the_last_of_its_requests_has_ended() -> None:
    served = Serving(EngineConfig("none"), MODEL, LETTERS)
    assert await served.until_idle(0)
    with served.request():
        with served.request():
            pass
        assert not await served.until_idle(0)
    assert await served.until_idle(0)


async def test_it_works_while_there_is_a_core_that_owes_nothing_for_too_long() -> None:
    served, core = Serving(EngineConfig("none"), MODEL, LETTERS, 5.0), SimpleNamespace(silence=5.0, ready=ready())
    assert (served.ready, served.works) == (False, False)
    with pytest.raises(ApiError, match="is loading its model"):
        served.check()
    served.take_core(cast(Router, core), Metrics(core.ready))
    assert (served.ready, served.works) == (True, True)
    core.silence = 5.1
    assert (served.ready, served.works) == (True, False)
    core.silence = 0.0
    served.lose_core()
    assert (served.ready, served.works) == (False, False)
    with pytest.raises(ApiError) as raised:
        served.check()
    assert raised.value.code == "engine_stopped"


async def test_the_fingerprint_says_whether_two_engines_draw_alike() -> None:
    def fingerprint(model: str = MODEL, quantization: Literal["int8"] | None = None, **changes: Any) -> str | None:
        served = Serving(EngineConfig("none", quantization=quantization), model, LETTERS)
        core = SimpleNamespace(ready=replace(ready(), **changes))
        served.take_core(cast(Router, core), Metrics(core.ready))
        return served.fingerprint

    others: list[dict[str, Any]] = [
        {"model": "other"},
        {"quantization": "int8"},
        {"vocab_size": 7},
        {"dtype": "bfloat16"},
        {"device": "cuda"},
    ]
    all_of_them = [fingerprint(), *(fingerprint(**other) for other in others)]
    assert len(set(all_of_them)) == len(all_of_them)
    assert fingerprint(blocks=7) == fingerprint() and re.fullmatch("fp_[0-9a-f]{12}", fingerprint() or "")


@pytest.mark.parametrize(("sequences", "most"), [(48, 48), (128, 128), (512, 128)])
async def test_A_the_widest_n_is_what_runs_at_once_and_never_above_128(path: Path, sequences: int, most: int) -> None:
    async with loading(path, max_sequences=sequences) as served, client_of(path) as client:
        assert served.limits.max_n == most
        status, error = await refused(client, "/v1/chat/completions", chat(n=most + 1))
        assert (status, error["code"]) == (400, "integer_above_max_value")
        assert (await refused(client, "/v1/chat/completions", chat(n=most)))[0] == 503


async def test_F_no_more_of_the_likeliest_tokens_are_told_than_the_settings_say(path: Path) -> None:
    async with loading(path, max_logprobs=3), client_of(path) as client:
        for top, status in ((4, 400), (3, 503)):
            body = chat(logprobs=True, top_logprobs=top)
            assert (await refused(client, "/v1/chat/completions", body))[0] == status
