"""Names are looked up once in a while, and of their addresses the first that answers is taken."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import pytest

from nproxy.upstreams.http import connecting
from nproxy.upstreams.replicas import Replica
from tests.fakes.unreachable import says_nothing
from tests.fakes.upstream import raw_server
from tests.upstreams.http.asking import OK, Http, answering


async def test_a_name_is_asked_for_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """By all who want it at the same time, too; and each gets another address first."""
    asked = 0

    async def getaddrinfo(host: str, port: int, **_: object) -> list[object]:
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.01)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{last}", port)) for last in (1, 2, 3)]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    connector = connecting.Connector()
    found = await asyncio.gather(*(connector._addresses("fleet.test", 80) for _ in range(4)))
    assert [addresses[0][4][0] for addresses in found] == ["127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.1"]
    assert asked == 1
    monkeypatch.setattr(connecting, "NAME_SECONDS", -1.0)
    for name in ("other.test", "fleet.test"):
        await connector._addresses(name, 80)
    assert asked == 2
    assert set(connector._known) == {("fleet.test", 80)}
    connector._forget(asyncio.get_running_loop().time() + 60)
    assert not connector._known


async def test_an_address_is_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", None)
    for host in ("127.0.0.1", "::1"):
        ((*_, address),) = await connecting.Connector()._addresses(host, 80)
        assert address[:2] == (host, 80)


async def test_an_address_that_refuses_or_says_nothing_is_not_waited_for(
    http: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, _ = answering(OK)
    async with raw_server(handle) as url, contextlib.AsyncExitStack() as stack:
        port = int(url.rpartition(":")[2].partition("/")[0])
        stack.enter_context(says_nothing("127.0.0.2", port))  # and nobody listens at the third address

        loop = asyncio.get_running_loop()
        lookup = loop.getaddrinfo

        async def getaddrinfo(host: str, port: int, **hints: Any) -> Any:
            if host != "fleet.test":
                return await lookup(host, port, **hints)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{last}", port)) for last in (2, 3, 1)]

        monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
        async with asyncio.timeout(2):
            assert await http.ask(Replica(base=f"http://fleet.test:{port}/v1", socket=None, label="r")) == b"ok"
