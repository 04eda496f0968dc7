"""A deadline that moves: it passes once, when it was set last, and never once it was stopped."""

from __future__ import annotations

import asyncio
import weakref
from functools import partial
from math import inf

from nproxy.upstreams.watchdog import Watchdog, Watchdogs


async def barks(*moves: tuple[float, float], seconds: float = 0.2) -> list[float]:
    """When it barks, in seconds from the start, if it is moved `after` seconds to `at` seconds from then."""
    loop = asyncio.get_running_loop()
    began, heard = loop.time(), list[float]()
    watchdog = Watchdog(Watchdogs(loop), lambda: heard.append(loop.time() - began))
    for after, at in moves:
        loop.call_at(began + after, watchdog.watch, began + after + at)
    await asyncio.sleep(seconds)
    assert watchdog.expired == bool(heard)
    watchdog.stop()
    return heard


async def test_it_barks_once_when_its_time_has_come() -> None:
    (at,) = await barks((0.0, 0.05))
    assert 0.04 < at < 0.15


async def test_it_goes_by_what_was_set_last() -> None:
    assert not await barks((0.0, 0.05), (0.02, inf))
    (later,) = await barks((0.0, 0.05), (0.02, 0.1))
    assert later > 0.11
    (sooner,) = await barks((0.0, 10.0), (0.02, 0.02))
    assert sooner < 0.15


async def test_once_stopped_it_is_silent() -> None:
    loop = asyncio.get_running_loop()
    heard: list[float] = []
    pack = Watchdogs(loop)
    watchdog = Watchdog(pack, lambda: heard.append(loop.time()))
    watchdog.watch(loop.time() + 0.02)
    watchdog.stop()
    watchdog.watch(loop.time() + 0.02)
    assert not pack.awake
    await asyncio.sleep(0.06)
    assert not heard and not watchdog.expired


async def test_each_of_many_barks_in_its_own_time() -> None:
    loop = asyncio.get_running_loop()
    began, heard = loop.time(), dict[int, float]()
    pack = Watchdogs(loop)

    def expire(number: int) -> None:
        heard[number] = loop.time() - began
        for one in {number} | ({2, 3} if number in (2, 3) else set()):  # who barks first stops who would with it
            dogs[one].stop()

    dogs = {number: Watchdog(pack, partial(expire, number)) for number in range(1, 6)}
    for number, at in ((4, 0.08), (2, 0.04), (3, 0.04), (1, 0.02), (5, 10.0)):
        dogs[number].watch(began + at)
    dogs[1].watch(began + 0.06)
    await asyncio.sleep(0.12)
    (first, *others) = heard
    assert first in (2, 3) and others == [1, 4]
    assert all(0 <= heard[number] - at < 0.03 for number, at in ((first, 0.04), (1, 0.06), (4, 0.08)))
    assert not dogs[5].expired


async def test_one_that_fails_keeps_none_from_barking() -> None:
    loop = asyncio.get_running_loop()
    pack, faults, heard = Watchdogs(loop), list[object](), list[int]()
    loop.set_exception_handler(lambda _, context: faults.append(context["exception"]))

    def fail() -> None:
        raise LookupError

    dogs = [Watchdog(pack, expire) for expire in (fail, fail, partial(heard.append, 1), partial(heard.append, 2))]
    for dog, after in zip(dogs, (0.02, 0.02, 0.02, 0.05), strict=True):
        dog.watch(loop.time() + after)
    await asyncio.sleep(0.1)
    assert heard == [1, 2] and [*map(type, faults)] == [LookupError] * 2


async def test_a_deadline_that_another_moves_in_the_same_moment_has_not_passed() -> None:
    loop = asyncio.get_running_loop()
    pack, heard = Watchdogs(loop), list[int]()

    def expire(number: int) -> None:
        heard.append(number)
        dogs[1 - number].watch(inf)

    dogs = [Watchdog(pack, partial(expire, number)) for number in (0, 1)]
    for dog in dogs:
        dog.watch(loop.time() + 0.02)
    await asyncio.sleep(0.06)
    assert len(heard) == 1


async def test_there_is_one_timer_at_a_time() -> None:
    loop = asyncio.get_running_loop()
    pack, timers = Watchdogs(loop), list[asyncio.TimerHandle]()
    for seconds in (10.0, 20.0, 5.0, inf, 1.0):
        Watchdog(pack, lambda: None).watch(loop.time() + seconds)
        assert pack._timer is not None
        timers.append(pack._timer)
    assert [timer.cancelled() for timer in timers] == [True, True, True, True, False]
    assert len({*map(id, timers)}) == 3


class Called:
    def close(self) -> None:
        """Nothing is open."""


async def test_who_is_stopped_is_let_go() -> None:
    pack = Watchdogs(asyncio.get_running_loop())
    called = Called()
    gone = weakref.ref(called)
    watchdog = Watchdog(pack, called.close)
    watchdog.watch(asyncio.get_running_loop().time() + 10.0)
    watchdog.stop()
    del called, watchdog
    assert gone() is None and not pack.awake
