"""Uploads whose model has to be found are on their way up before they are whole: read no further than is needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from nproxy.gateway.passthrough.upload import PEEK_BYTES
from tests.fakes.upstream import raw_server
from tests.gateway.conftest import gateway_for

FORM = "multipart/form-data; boundary=b"
MODEL = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--b\r\n'
FILE = b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'


@pytest.mark.parametrize(
    ("headers", "begun"),
    [
        pytest.param({"content-type": FORM}, MODEL + FILE, id="a form that has named its model"),
        pytest.param({"content-type": FORM}, FILE + bytes(PEEK_BYTES - len(FILE)), id="a form that does not for long"),
        pytest.param({"content-type": FORM, "content-encoding": "gzip"}, b"\x1f\x8b", id="a form that is packed"),
        pytest.param({"content-type": "application/octet-stream"}, b"some", id="no form"),
    ],
)
async def test_what_is_known_goes_up_while_the_rest_comes(headers: dict[str, str], begun: bytes) -> None:
    up = asyncio.Event()

    async def serves(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        sent = b""
        while not sent.endswith(b"\r\n0\r\n\r\n") and (data := await reader.read(1 << 16)):
            sent += data
            up.set()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async def upload() -> AsyncIterator[bytes]:
        yield begun
        await up.wait()
        yield b"the rest"

    async with raw_server(serves) as url:
        of = {"name": "of", "replicas": [url], "models": ["m"]}
        other = {"name": "other", "replicas": ["http://127.0.0.1:9/v1"], "models": ["x"]}
        config = {"upstreams": [other, of], "passthrough": {"paths": "all", "upstream": "of"}}
        async with gateway_for(config) as gateway, asyncio.timeout(20):
            answer = await gateway.client.post("/v1/files", content=upload(), headers=headers)
            assert answer.text == "ok"
