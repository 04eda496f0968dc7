"""Names that are looked up again and again: what is kept when resolvers change their minds, or fail."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nproxy.upstreams import dns
from nproxy.upstreams.dns import FORGET_SECONDS, Known, Names, resolve


def test_addresses_are_kept_in_order_each_once() -> None:
    known = Known().after(["10.0.0.2", "10.0.0.1", "10.0.0.2"], now=0)
    assert known.addresses == ("10.0.0.1", "10.0.0.2")


def test_a_failing_resolver_changes_nothing_however_long_it_fails() -> None:
    known = Known().after(["10.0.0.1"], now=0)
    for minute in range(600):
        known = known.after(None, now=60.0 * minute)
    assert (known.addresses, known.result) == (("10.0.0.1",), "failure")


def test_a_name_that_has_no_address_any_more_keeps_what_it_had_for_a_while() -> None:
    known = Known().after(["10.0.0.1"], now=0).after([], now=10).after(None, now=11)
    assert known.after([], now=10 + FORGET_SECONDS - 1).addresses == ("10.0.0.1",)
    assert known.after([], now=10 + FORGET_SECONDS).addresses == ()
    again = known.after(["10.0.0.2"], now=20).after([], now=10 + FORGET_SECONDS)
    assert again.addresses == ("10.0.0.2",), "the time begins anew"


LOOKS = st.lists(st.tuples(st.floats(0.1, 1000), st.none() | st.lists(st.sampled_from(["a", "b"]), max_size=2)))


@given(LOOKS)
def test_the_last_good_answer_stands_unless_there_was_none_for_long(
    looks: list[tuple[float, list[str] | None]],
) -> None:
    known, now, last = Known(), 0.0, tuple[str, ...]()
    since: float | None = None
    for pause, found in looks:
        now += pause
        known = known.after(found, now)
        if found:
            last, since = tuple(sorted(set(found))), None
        elif found is not None:
            since = now if since is None else since
            last = last if now - since < FORGET_SECONDS else ()
        assert known.addresses == last


class Resolver:
    """Answers as it is told: addresses by name; what is missing fails."""

    def __init__(self, **addresses: Sequence[str]) -> None:
        self.addresses = dict(addresses)
        self.held: dict[str, asyncio.Event] = {}
        self.asked: list[str] = []

    async def __call__(self, name: str) -> Sequence[str]:
        self.asked.append(name)
        if name in self.held:
            await self.held[name].wait()
        if name not in self.addresses:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return self.addresses[name]


class Kept:
    """What `Names` told last, and when."""

    def __init__(self) -> None:
        self.told: list[Mapping[str, tuple[str, ...]]] = []
        self.news = asyncio.Event()

    def __call__(self, addresses: Mapping[str, tuple[str, ...]]) -> None:
        self.told.append(addresses)
        self.news.set()

    async def next(self) -> Mapping[str, tuple[str, ...]]:
        async with asyncio.timeout(5):
            await self.news.wait()
        self.news.clear()
        return self.told[-1]


async def test_only_changes_are_told() -> None:
    resolver, kept = Resolver(a=["10.0.0.1"]), Kept()
    names = Names(lambda: ["a"], kept, resolver)
    for _ in range(3):
        await names._look("a")
    resolver.addresses["a"] = ["10.0.0.2"]
    await names._look("a")
    assert kept.told == [{"a": ("10.0.0.1",)}, {"a": ("10.0.0.2",)}]


async def test_a_name_that_takes_long_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dns, "INTERVAL_SECONDS", 0.005)
    resolver, kept = Resolver(a=["10.0.0.1"], b=["10.0.0.3"]), Kept()
    resolver.held["b"] = asyncio.Event()
    running = asyncio.create_task(Names(lambda: ["a", "b"], kept, resolver).run())
    assert await kept.next() == {"a": ("10.0.0.1",)}
    resolver.addresses["a"] = ["10.0.0.2"]
    assert await kept.next() == {"a": ("10.0.0.2",)}
    assert resolver.asked.count("b") == 1, "it is not asked for again while somebody waits for it"
    resolver.held["b"].set()
    assert await kept.next() == {"a": ("10.0.0.2",), "b": ("10.0.0.3",)}
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_new_name_is_looked_up_at_once() -> None:
    resolver, kept, wanted = Resolver(a=["10.0.0.1"], b=["10.0.0.2"]), Kept(), ["a"]
    names = Names(lambda: wanted, kept, resolver)
    running = asyncio.create_task(names.run())
    await kept.next()
    wanted[:] = ["b"]
    names.soon()
    assert await kept.next() == {"b": ("10.0.0.2",)}
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.fixture
def lines() -> Iterator[list[str]]:
    kept: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kept.append(f"{record.levelname} {record.getMessage()}")

    handler, level = Handler(), dns.log.level
    dns.log.addHandler(handler)
    dns.log.setLevel(logging.INFO)
    yield kept
    dns.log.removeHandler(handler)
    dns.log.setLevel(level)


async def test_a_failing_resolver_is_logged_once_for_each_change(lines: list[str]) -> None:
    resolver = Resolver(a=["10.0.0.1"])
    names = Names(lambda: ["a"], lambda _: None, resolver)
    for addresses in (["10.0.0.1"], None, None, None, ["10.0.0.1"], ["10.0.0.1"], [], []):
        if addresses is None:
            resolver.addresses.pop("a", None)
        else:
            resolver.addresses["a"] = addresses
        await names._look("a")
    assert lines == [
        "INFO a host name was resolved",
        "WARNING a host name cannot be resolved",
        "INFO a host name was resolved",
        "WARNING a host name has no addresses",
    ]


async def test_the_system_knows_this_machine() -> None:
    assert set(await resolve("localhost")) & {"127.0.0.1", "::1"}
    assert await resolve("127.0.0.1") == ["127.0.0.1"]


async def test_what_the_system_says(monkeypatch: pytest.MonkeyPatch) -> None:
    said: object = [(0, 0, 0, "", ("10.0.0.1", 0)), (0, 0, 0, "", ("fe80::1%eth0", 0, 0, 2))]

    def getaddrinfo(*_: object, **__: object) -> object:
        if isinstance(said, OSError):
            raise said
        return said

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    assert await resolve("a") == ["10.0.0.1"], "an address of one link has no place in a URL"
    said = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    assert await resolve("a") == []
    said = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    with pytest.raises(OSError, match="Temporary"):
        await resolve("a")
