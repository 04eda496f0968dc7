"""Small documents of replicas: what is told when they do not come."""

from __future__ import annotations

import asyncio

import pytest

from nproxy.upstreams.documents import Documents
from nproxy.upstreams.forward import ForwardError
from nproxy.upstreams.gate import Gate, Policy
from tests.fakes.upstream import raw_server
from tests.upstreams.conftest import Caller, replica_at


async def test_a_document_whose_rest_does_not_come_in_time_is_late_and_not_cut(caller: Caller) -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
        await reader.read()

    async with raw_server(half) as url:
        replica = replica_at(url)
        documents = Documents(caller.client(), Gate([replica], Policy()), "none")
        with pytest.raises(ForwardError) as late:
            await documents.get(replica, "/health", 0.2)
    assert str(late.value) == "The upstream did not send its answer in time."
