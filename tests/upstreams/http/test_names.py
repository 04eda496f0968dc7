"""Names are looked up once in a while, and of their addresses the first that answers is taken."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from nproxy.upstreams.dns import resolve
from nproxy.upstreams.http import connecting
from nproxy.upstreams.replicas import Replica
from tests.fakes.unreachable import says_nothing
from tests.fakes.upstream import raw_server
from tests.upstreams.http.asking import OK, Http, answering
from tests.waiting import until


async def test_a_name_is_asked_for_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """By all who want it at the same time, too; and each gets another address first."""
    asked = 0

    def getaddrinfo(host: str, port: int, **_: object) -> list[object]:
        nonlocal asked
        asked += 1
        time.sleep(0.01)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{last}", port)) for last in (1, 2, 3)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    connector = connecting.Connector()
    found = await asyncio.gather(*(connector._addresses("fleet.test", 80) for _ in range(4)))
    assert [addresses[0][4][0] for addresses in found] == ["127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.1"]
    assert asked == 1
    await connector._addresses("other.test", 80)
    assert asked == 2
    connector._forget(asyncio.get_running_loop().time() + connecting.FORGET_SECONDS)
    assert not connector._known


class Resolver:
    """Answers as it is told: an address, or an error. answers: while it is cleared, it does not. asked: how often."""

    def __init__(self) -> None:
        self.says: str | OSError = "127.0.0.1"
        self.asked = 0
        self.answers = threading.Event()
        self.answers.set()

    def getaddrinfo(self, _: str, port: int, **__: object) -> list[object]:
        self.asked += 1
        self.answers.wait()
        if isinstance(self.says, OSError):
            raise self.says
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (self.says, port))]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    """A resolver whose answers are old at once."""
    resolver = Resolver()
    monkeypatch.setattr(connecting, "NAME_SECONDS", 0.0)
    monkeypatch.setattr(socket, "getaddrinfo", resolver.getaddrinfo)
    yield resolver
    resolver.answers.set()


async def first(connector: connecting.Connector, name: str = "fleet.test") -> str:
    """The address that the next connection tries first."""
    ((*_, address), *_) = await connector._addresses(name, 80)
    return str(address[0])


async def test_a_resolver_that_hangs_delays_no_name_that_is_known(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what it says when it answers at last is taken, although nobody waits for it any more."""
    connector = connecting.Connector()
    assert await first(connector) == "127.0.0.1"
    resolver.answers.clear()
    resolver.says = "127.0.0.2"
    async with asyncio.timeout(30):
        assert [await first(connector) for _ in range(200)] == ["127.0.0.1"] * 200
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await first(connector, "unknown.test")
    connector._forget(asyncio.get_running_loop().time() + connecting.FORGET_SECONDS)
    assert len(connector._known) == 2, "who asks again waits for the same lookup"
    monkeypatch.setattr(connecting, "NAME_SECONDS", 60.0)
    resolver.answers.set()
    await until(lambda: not any(known.lookup for known in connector._known.values()))
    resolver.answers.clear()
    assert [await first(connector, name) for name in ("fleet.test", "unknown.test")] == ["127.0.0.2"] * 2


async def test_a_lookup_that_ends_as_another_one_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    lookup: asyncio.Future[Any] = loop.create_future()
    monkeypatch.setattr(connecting, "look_up", lambda host, port: lookup)
    connector = connecting.Connector()
    first = asyncio.create_task(connector._addresses("fleet.test", 80))
    await asyncio.sleep(0)
    loop.call_soon(lookup.set_result, [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 80))])
    second = asyncio.create_task(connector._addresses("fleet.test", 80))  # in the same iteration, behind it
    assert await first == await second == lookup.result()


async def test_a_resolver_that_fails_is_asked_again_and_the_old_addresses_are_used(resolver: Resolver) -> None:
    connector = connecting.Connector()
    resolver.says = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    with pytest.raises(socket.gaierror, match="Temporary"):
        await first(connector)
    resolver.says = "127.0.0.1"
    assert await first(connector) == "127.0.0.1"
    resolver.says = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    assert [await first(connector) for _ in range(3)] == ["127.0.0.1"] * 3
    resolver.says = "127.0.0.2"

    async def found() -> bool:
        return await first(connector) == "127.0.0.2"

    await until(found)


async def test_a_resolver_that_fails_is_not_asked_by_every_call(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "SLOW_SECONDS", 60.0)
    connector = connecting.Connector()
    await first(connector)
    resolver.says = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    assert [await first(connector) for _ in range(3)] == ["127.0.0.1"] * 3
    assert resolver.asked == 2


async def test_a_name_that_has_no_address_any_more_is_not_called(resolver: Resolver) -> None:
    connector = connecting.Connector()
    assert await first(connector) == "127.0.0.1"
    resolver.says = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    for _ in range(2):
        with pytest.raises(socket.gaierror, match="not known"):
            await first(connector)


async def test_names_whose_resolver_hangs_keep_no_other_name_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, lookup = threading.Event(), socket.getaddrinfo

    def getaddrinfo(host: str, *where: Any, **hints: Any) -> Any:
        if host.endswith(".test"):
            answers.wait()
        return lookup(host, *where, **hints)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    connector = connecting.Connector()
    hanging = [asyncio.create_task(connector._addresses(f"{number}.test", 80)) for number in range(20)]
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        assert await connector._addresses("localhost", 80)
        assert await resolve("localhost")
    answers.set()
    await asyncio.wait(hanging)
    assert all(isinstance(task.exception(), socket.gaierror) for task in hanging)


async def test_no_thread_for_a_lookup_is_a_shortage_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(OSError, match="no thread can be started"):
        await connecting.Connector()._addresses("fleet.test", 80)


async def test_while_no_thread_can_be_started_the_old_addresses_are_used(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    connector = connecting.Connector()
    assert await first(connector) == "127.0.0.1"
    resolver.says = "127.0.0.2"
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        assert [await first(connector) for _ in range(3)] == ["127.0.0.1"] * 3

    async def found() -> bool:
        return await first(connector) == "127.0.0.2"

    await until(found)


async def test_an_address_is_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", None)
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

        lookup = socket.getaddrinfo

        def getaddrinfo(host: str, port: int, **hints: Any) -> Any:
            if host != "fleet.test":
                return lookup(host, port, **hints)
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{last}", port)) for last in (2, 3, 1)]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        async with asyncio.timeout(2):
            assert await http.ask(Replica(base=f"http://fleet.test:{port}/v1", socket=None, label="r")) == b"ok"
