"""Commands that are pointed at something else than a server of the OpenAI API: what each says, in one line."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

from nproxy.cli.target import Target
from nproxy.config.replicas import parse_address
from tests.cli.running import Done, in_here, nproxy
from tests.fakes.upstream import MODEL, Behaviour, FakeUpstream, raw_server

KEY = "canary/4b71"
Ask = Callable[..., Awaitable[Done]]


async def chat(url: str, *words: str, **environ: Any) -> Done:
    return await in_here("chat", "--url", url, "-n", "1", *words, "hi", **environ)


async def probe(url: str, *words: str, **environ: Any) -> Done:
    return await in_here("probe", url, *words, **environ)


async def bench(url: str, *words: str, **environ: str) -> Done:
    return await nproxy("bench", url, "--requests", "1", "--warmup", "0", *words, **environ)


every_command = pytest.mark.parametrize("ask", [chat, probe, bench])


def answers(*pieces: bytes) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """Serve these bytes, whatever is asked, with a pause between two pieces."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.05)

    return handle


def http(body: bytes, kind: str, status: str = "200 OK", **more: str) -> bytes:
    fields = {"Content-Type": kind, "Content-Length": str(len(body)), "Connection": "close", **more}
    head = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(head).encode() + body


@every_command
async def test_a_page_for_people_is_no_list_of_models(ask: Ask) -> None:
    async with raw_server(answers(http(b"<html>", "text/html; charset=utf-8"))) as url:
        line = (await ask(url)).line(1)
    assert "returned no list of models at /models, but text/html; is this the base URL of its API?" in line


@every_command
async def test_what_is_no_http_is_told_in_words(ask: Ask) -> None:
    async with raw_server(answers(b"220 mail.example ESMTP \x1b[2J\r\n\r\n")) as url:
        line = (await ask(url)).line(1)
    assert line.endswith("broke off: its answer is not valid HTTP")


@every_command
async def test_a_server_that_just_closes(ask: Ask) -> None:
    async with raw_server(answers()) as url:
        line = (await ask(url)).line(1)
    assert line.endswith(("broke off: the connection ended before the answer", "broke off: connection reset by peer"))


@every_command
async def test_nobody_is_asked_but_the_server_that_was_named(ask: Ask) -> None:
    async with FakeUpstream() as other:
        moved = http(b"", "text/plain", "307 Temporary Redirect", Location=f"{other.url}/models")
        async with raw_server(answers(moved)) as url:
            line = (await ask(url, "--api-key", KEY)).line(1)
        assert "307" in line
        assert not other.requests


@every_command
async def test_words_of_a_server_are_fit_for_a_terminal(ask: Ask) -> None:
    failed = http(b'{"error": {"message": "up\\u001b[2J\\nset \\u202ed"}}', "application/json", "500 Oops")
    async with raw_server(answers(failed)) as url:
        line = (await ask(url)).line(1)
    assert "500: up [2J set d" in line


@every_command
async def test_a_certificate_must_be_trusted_and_may_be_that_of_ones_own_authority(ask: Ask, tmp_path: Path) -> None:
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    async with FakeUpstream(tls=context) as upstream:
        url = upstream.url.replace("http://", "https://")
        line = (await ask(url)).line(1)
        assert "cannot be reached: its TLS certificate is not trusted: " in line
        assert (await ask(url, SSL_CERT_FILE=str(tmp_path / "ca.pem"))).code == 0
        plain = (await ask(url.replace("https://", "http://"))).line(1)
        assert "broke off: " in plain
    async with FakeUpstream() as upstream:
        assert "cannot be reached: TLS handshake failed: " in (
            await ask(upstream.url.replace("http://", "https://"))
        ).line(1)


@every_command
@pytest.mark.parametrize("written", [KEY, KEY.replace("/", "\\/")])
async def test_a_key_that_the_server_repeats_is_not_shown(ask: Ask, written: str) -> None:
    said = b'{"error": {"message": "%s is no key"}}' % written.encode()
    async with FakeUpstream(Behaviour(status=403, body=said)) as upstream:
        done = await ask(upstream.url, "--api-key", KEY)
    assert done.code == 1
    assert "*** is no key" in done.out + done.err
    assert "canary" not in done.out + done.err


@pytest.mark.parametrize("ask", [chat, bench])
async def test_a_key_that_a_stream_repeats_is_not_shown(ask: Ask) -> None:
    said = b'data: {"error": {"message": "%s is no key"}}\n\n' % KEY.encode()
    async with FakeUpstream(Behaviour(status=200, body=said, content_type="text/event-stream")) as upstream:
        done = await ask(upstream.url, "--api-key", KEY)
    assert done.code == 1
    assert "*** is no key" in done.out + done.err
    assert "canary" not in done.out + done.err


@every_command
async def test_a_list_of_models_may_come_in_pieces(ask: Ask) -> None:
    listed = http(json.dumps({"data": [{"id": MODEL}]}).encode(), "application/json")
    async with raw_server(answers(listed[:-10], listed[-10:])) as url:
        done = await ask(url)  # every other answer is this list, too
    assert done.code == 1
    assert "list of models" not in done.err
    assert (
        MODEL in done.out
        or "does not answer as the OpenAI API specifies" in done.err
        or f"model {MODEL} answers" in done.err
    )


def test_a_key_is_blotted_however_json_writes_it() -> None:
    target = Target(parse_address("http://127.0.0.1:1"), 'a/b"c\\d')
    quoted = json.dumps(target.key)
    assert target.without_key(f"is {target.key} not {quoted}") == 'is *** not "***"'
    assert target.blotted(quoted.replace("/", "\\/").encode()) == b'"***"'
    assert "a/b" not in repr(target)
    nobody = Target(target.replica)
    assert (nobody.without_key("a"), nobody.blotted(b"a")) == ("a", b"a")
