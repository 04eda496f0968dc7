"""What a client may send that is no request: refused in the envelope, before any call, whatever it is."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import zlib
from typing import Any

import pytest

from nproxy.gateway import generate
from nproxy.gateway.offload import Offload
from nproxy.openai import body as bodies
from nproxy.openai.body import Body
from tests.fakes.upstream import FakeUpstream
from tests.gateway.conftest import CHAT, Gateway, Start, body, envelope

LEGACY = "/v1/completions"
MIB = 1 << 20


def with_value(key: str, value: str) -> bytes:
    """A small chat request with one more member, as it is written."""
    return json.dumps(body())[:-1].encode() + f', "{key}": {value}}}'.encode("utf-8", "surrogatepass")


def chat(content: bytes) -> bytes:
    return b'{"model":"fake-model","messages":[{"role":"user","content":' + content + b"}]}"


def gzipped(content: bytes, times: int = 1) -> bytes:
    """Zeros and the like, so many times over: made without ever being held."""
    packer = zlib.compressobj(9, wbits=31)
    return b"".join(packer.compress(content) for _ in range(times)) + packer.flush()


async def refused(
    gateway: Gateway, upstream: FakeUpstream, content: bytes, *statuses: int, path: str = CHAT, **headers: str
) -> str | None:
    """It is answered in the envelope, and nobody upstream hears of it; the field that is named."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = await gateway.post(content, path, headers=sent)
    assert answer.status_code in (statuses or (400,)), answer.text
    error = envelope(answer)
    assert error["type"] == "invalid_request_error" and len(error["message"]) < 300
    assert upstream.calls == []
    param: str | None = error["param"]
    return param


BAD_N = ("0", "-1", "129", "true", "false", "2.0", "1e0", '"2"', "[2]", "{}", "5000000", "9" * 30, "-" + "9" * 30)


@pytest.mark.parametrize("path", [CHAT, LEGACY])
async def test_every_bad_n(gateway: Gateway, upstream: FakeUpstream, path: str) -> None:
    for stream in (False, True):
        sent = json.dumps(body(path, stream=stream))[:-1].encode()
        for n in BAD_N:
            assert await refused(gateway, upstream, sent + f', "n": {n}}}'.encode(), path=path) == "n"
        assert await refused(gateway, upstream, sent + b', "n": 1e400}', path=path) is None


@pytest.mark.parametrize("prompt", [["x"] * 65, [[1]] * 65, ["x"] * 100_000])
async def test_prompts_times_n(gateway: Gateway, upstream: FakeUpstream, prompt: list[object]) -> None:
    sent = json.dumps(body(LEGACY, prompt=prompt, n=8)).encode()
    assert await refused(gateway, upstream, sent, path=LEGACY) in ("n", "prompt")


NO_JSON = (
    '"\\ud800"',
    '"\\udc00\\ud800"',
    '["x", {"y": "\\udfff"}]',
    '"\ud800"',
    "NaN",
    "Infinity",
    "-Infinity",
    "[1, NaN]",
    "1e999",
    "9" * 5000,
    "01",
    "+1",
    ".5",
    "'x'",
    "undefined",
    '"\n"',
    '"\\x41"',
    "[1,]",
    "{1: 2}",
    "[" * 100_000,
    "[" * 100_000 + "]" * 100_000,
    '{"a":' * 100_000 + "1" + "}" * 100_000,
    "1} {",
)


async def test_what_is_no_JSON(gateway: Gateway, upstream: FakeUpstream) -> None:
    for value in NO_JSON:
        assert await refused(gateway, upstream, with_value("user", value)) is None


async def test_only_utf8_is_read(gateway: Gateway, upstream: FakeUpstream) -> None:
    text = json.dumps(body(user="é"), ensure_ascii=False)
    for encoding in ("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-8-sig", "latin-1"):
        await refused(gateway, upstream, text.encode(encoding))


NO_REQUEST = (b"", b" ", b"null", b"[]", b'"x"', b"\x00", b"{}", b"model=x&n=2", b"--b\r\n\r\nx")


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "application/x-www-form-urlencoded", ""])
async def test_empty_bodies_and_other_content_types(gateway: Gateway, upstream: FakeUpstream, kind: str) -> None:
    for content in NO_REQUEST:
        await refused(gateway, upstream, content, content_type=kind)


async def test_JSON_is_read_whatever_it_is_called(gateway: Gateway) -> None:
    """OpenAI does so too, and browsers send text/plain to spare a question."""
    for kind in ("text/plain", "application/json; charset=utf-16", "multipart/form-data; boundary=b", ""):
        assert (await gateway.post(body(), headers={"content-type": kind})).status_code == 200


# Too much of it


@pytest.mark.parametrize("packed", ["gzip", "deflate"])
async def test_bombs(gateway: Gateway, upstream: FakeUpstream, packed: str) -> None:
    bomb = gzipped(b"0" * MIB, 64) if packed == "gzip" else zlib.compress(b" " * 64 * MIB, 9)
    assert len(bomb) < MIB
    await refused(gateway, upstream, bomb, 413, content_encoding=packed)


@pytest.mark.parametrize(
    ("packed", "content", "status"),
    [
        ("gzip", gzipped(gzipped(b"{}")), 400),
        ("gzip", b"{}", 400),
        ("gzip", gzipped(b'{"model"')[:-4], 400),
        ("gzip", gzipped(b"{}") + b"more", 400),
        ("deflate", b"\x00", 400),
        ("br", b"{}", 415),
        ("gzip, gzip", gzipped(b"{}"), 415),
        ("canary\\", b"{}", 415),
    ],
)
async def test_encodings_that_are_not_what_they_say(
    gateway: Gateway, upstream: FakeUpstream, packed: str, content: bytes, status: int
) -> None:
    await refused(gateway, upstream, content, status, content_encoding=packed)


async def test_compressed_bodies_end_where_they_should(gateway: Gateway, upstream: FakeUpstream) -> None:
    whole = gzipped(json.dumps(body()).encode())
    for content, status in ((whole, 200), (whole[:-4], 400), (whole + b"more", 400)):
        assert (await gateway.post(content, headers={"content-encoding": "gzip"})).status_code == status
    assert len(upstream.calls) == 1


async def test_a_body_over_the_limit(gateway: Gateway, upstream: FakeUpstream) -> None:
    await refused(gateway, upstream, chat(b'"' + b"x" * 10 * MIB + b'"'), 413)


@pytest.mark.parametrize("unit", [b"[]", b'{"a":{}}', b'""', b'{"a":1}', b"1", b"1.5", b"null"])
async def test_ten_MiB_of_small_parts_are_refused_before_they_are_parsed(
    gateway: Gateway, upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch, unit: bytes
) -> None:
    """Parsed they would take hundreds of megabytes, and hold all other requests up for half a second."""

    def parsed(text: str) -> None:
        raise AssertionError("it was parsed")

    monkeypatch.setattr(bodies, "_scan", parsed)
    content = b"[" + b",".join([unit] * ((10 * MIB - 200) // (len(unit) + 1))) + b"]"
    await refused(gateway, upstream, chat(content))


@pytest.mark.parametrize(
    ("path", "content"),
    [
        (CHAT, chat(b'"' + b"Hello, [world] {it} is. " * ((10 * MIB - 200) // 24) + b'"')),
        (CHAT, chat(b'"' + b'\\"[,' * ((10 * MIB - 200) // 4) + b'"')),
        (CHAT, chat(b'"' + "😀".encode() * ((10 * MIB - 200) // 4) + b'"')),
        (LEGACY, b'{"model":"fake-model","prompt":[' + b",".join([b"%d" % id for id in range(10**6)]) + b"]}"),
        (LEGACY, b'{"model":"fake-model","prompt":[' + b",".join([b"[%s1]" % (b"1," * 9999)] * 100) + b"]}"),
    ],
    ids=["10 MiB of text", "10 MiB of escapes", "10 MiB of emoji", "a million token ids", "100 prompts of 10,000"],
)
async def test_what_is_large_and_right_is_served(
    gateway: Gateway, upstream: FakeUpstream, path: str, content: bytes
) -> None:
    answer = await gateway.post(content, path)
    assert answer.status_code == 200
    assert upstream.calls[0].body["model"] == "fake-model"
    if b"[[" not in content:
        assert upstream.calls[0].raw == content


@pytest.mark.parametrize(("place", "name"), [(Body, "parse"), (generate, "parse_chat")])
async def test_long_bodies_are_read_beside_the_loop(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, place: object, name: str
) -> None:
    read, threads, here = getattr(place, name), list[int](), threading.get_ident()

    def noted(*args: object) -> object:
        threads.append(threading.get_ident())
        if threads[-1] != here:
            time.sleep(0.05)
        return read(*args)

    monkeypatch.setattr(place, name, noted)
    rest = len(chat(b'""'))
    short, long = (chat(b'"' + b"x" * (size - rest) + b'"') for size in (bodies.LONG - 1, bodies.LONG))
    await gateway.post(short)
    assert threads == [here]
    answers = await asyncio.gather(*(gateway.post(long) for _ in range(3)))
    assert [answer.status_code for answer in answers] == [200] * 3
    beside = threads[1:]
    assert here not in beside and len(beside) == 3 and len({*beside}) == 1, "one thread: several crowd the loop out"


async def test_what_nobody_waits_for_is_not_begun() -> None:
    aside, held, begun = Offload(), threading.Event(), list[Any]()
    try:
        first = asyncio.create_task(aside.run("", held.wait))
        second = asyncio.create_task(aside.run("", begun.append, 2))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait([second])
        held.set()
        await first
        assert begun == []
    finally:
        aside.close()


async def test_callers_take_turns_for_long_bodies() -> None:
    """Whoever sends many delays another by one of them."""
    aside, held, done = Offload(), threading.Event(), list[Any]()
    try:
        first = asyncio.create_task(aside.run("ann", held.wait))
        await asyncio.sleep(0)
        asked = [
            asyncio.create_task(aside.run(bucket, done.append, (bucket, number)))
            for number, bucket in enumerate(["ann", "ann", "ann", "bob", "cy", "bob"])
        ]
        await asyncio.sleep(0)
        asked[1].cancel()
        held.set()
        await asyncio.gather(first, *asked, return_exceptions=True)
        assert done == [("ann", 0), ("bob", 3), ("cy", 4), ("bob", 5), ("ann", 2)]
    finally:
        aside.close()


@pytest.mark.parametrize("given", [False, True])
async def test_a_turn_that_nobody_takes_goes_to_the_next(given: bool) -> None:
    """Also if it is given to a request in the moment in which that one is cancelled."""
    aside, held = Offload(), threading.Event()
    try:
        first = asyncio.create_task(aside.run("ann", held.wait))
        await asyncio.sleep(0)
        second, third = (asyncio.create_task(aside.run("bob", int)) for _ in range(2))
        await asyncio.sleep(0)
        if given:
            first.add_done_callback(lambda _: second.cancel())
            first.cancel()  # its turn is over, whatever the thread still does
        else:
            second.cancel()
        held.set()
        await asyncio.wait([first])
        async with asyncio.timeout(5):
            assert await third == 0
        assert second.cancelled()
    finally:
        aside.close()


async def test_a_long_body_is_refused_as_a_short_one(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = await start()
    sent = with_value("user", "NaN")
    short = await gateway.post(sent)
    monkeypatch.setattr(bodies, "LONG", 1)
    assert (await gateway.post(sent)).json() == short.json()
    with pytest.raises(Exception, match="NaN or Infinity"):
        Body.parse(sent)
