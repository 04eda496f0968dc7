"""A server that announces itself: to a gateway's real admin port, and to what is none."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from engine.options import Registration
from engine.server import announcing
from engine.server.announcing import Announcer
from tests.fakes.upstream import MODEL, FakeUpstream
from tests.gateway.test_admin import REPLICAS, TOKEN, Fleet, fleet_for
from tests.waiting import until


def announcer(
    endpoint: str, url: str, works: Callable[[], bool] = lambda: True, token: str | None = TOKEN
) -> Announcer:
    return Announcer(Registration(endpoint, url, token), [MODEL], works)


def test_no_token_is_shown() -> None:
    assert TOKEN not in repr(Registration("http://10.0.0.1", "http://10.0.0.2", TOKEN))


async def known(fleet: Fleet) -> bool:
    return bool(await fleet.replicas())


async def test_it_is_called_while_it_is_there_and_not_after_its_goodbye() -> None:
    async with fleet_for() as fleet, FakeUpstream() as server:
        async with announcer(f"{fleet.admin.base_url}{REPLICAS}", server.url).announced():
            await until(lambda: known(fleet))
            (replica,) = (await fleet.replicas()).values()
            assert (replica["models"], replica["source"]) == ([MODEL], "registered")
            assert (await fleet.gateway.ask(n=2)).status_code == 200
        assert await fleet.replicas() == {}
        assert len(server.calls) == 2


async def test_it_announces_itself_when_it_works_and_lets_go_when_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcing, "AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(announcing, "LEASE_SECONDS", 1.0)
    works = False
    async with fleet_for() as fleet:
        working = announcer(f"{fleet.admin.base_url}{REPLICAS}", "http://10.0.0.1/v1", lambda: works)
        async with working.announced():
            await asyncio.sleep(0.05)
            assert not await known(fleet)
            works = True
            await until(lambda: known(fleet))
            last = 0.0

            async def renewed() -> bool:
                nonlocal last
                before, (last,) = last, fleet.registrar.leases("fake").values()
                return 0 < before < last

            await until(renewed)
            works = False

            async def forgotten() -> bool:
                return not await known(fleet)

            await until(forgotten)


async def test_the_goodbye_is_said_when_an_error_ends_it() -> None:
    async with fleet_for() as fleet:
        with pytest.raises(BaseExceptionGroup) as raised:
            async with announcer(f"{fleet.admin.base_url}{REPLICAS}", "http://10.0.0.1/v1").announced():
                await until(lambda: known(fleet))
                raise OSError("the core is gone")
        assert raised.group_contains(OSError, match="the core is gone")
        assert not await known(fleet)


@asynccontextmanager
async def answering(**answer: Any) -> AsyncIterator[str]:
    """A server that answers everything alike."""

    async def handle(_: web.BaseRequest) -> web.StreamResponse:
        return web.json_response(**answer)

    async with handling(handle) as endpoint:
        yield endpoint


@asynccontextmanager
async def handling(handle: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> AsyncIterator[str]:
    """A server whose every path is handled so."""
    server = await asyncio.get_running_loop().create_server(web.Server(handle), "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()


async def said_of(endpoint: str, caplog: pytest.LogCaptureFixture) -> list[str]:
    """The log of a server that has tried a few times to announce itself there."""
    tries = 0

    def works() -> bool:
        nonlocal tries
        tries += 1
        return True

    async def tried() -> bool:
        return tries > 3

    async with announcer(endpoint, "http://10.0.0.1/v1", works).announced():
        await until(tried)
    assert TOKEN not in caplog.text
    return [
        record.getMessage()
        for record in caplog.records
        if "registration with the gateway failed" in record.getMessage()
    ]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"data": {"error": {"message": "No such upstream."}}, "status": 404}, "No such upstream."),
        ({"data": {"detail": "Not Found"}, "status": 404}, "Not Found"),
        (
            {"text": "", "status": 302, "headers": {"Location": "http://127.0.0.1:1/"}},
            "The upstream answered 302 Found.",
        ),
        ({"data": []}, "the answer is not that of a gateway"),
        ({"text": "<html>"}, "not JSON"),
    ],
)
async def test_what_the_gateway_does_not_take_is_logged_once(
    answer: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcing, "AGAIN_SECONDS", 0.001)
    caplog.set_level(logging.INFO)
    async with answering(**answer) as endpoint:
        (said,) = await said_of(endpoint, caplog)
    assert said.startswith("registration with the gateway failed: ") and (why in said or why == "not JSON")


async def test_a_gateway_that_is_away_is_tried_again_until_it_is_there(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcing, "AGAIN_SECONDS", 0.001)
    async with answering(data={}) as endpoint:
        pass
    (said,) = await said_of(endpoint, caplog)
    assert "registration with the gateway failed" in said


async def test_without_a_thread_to_look_up_the_gateway_it_is_tried_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_thread(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(announcing, "AGAIN_SECONDS", 0.001)
    monkeypatch.setattr("aiohttp.resolver.ThreadedResolver.resolve", no_thread)
    monkeypatch.setattr("aiohttp.connector.DefaultResolver.resolve", no_thread)
    (said,) = await said_of("http://gateway.invalid/admin/replicas", caplog)
    assert "can't start new thread" in said


async def test_it_comes_again_when_the_gateway_wants_and_every_change_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcing, "AGAIN_SECONDS", 0.001)
    caplog.set_level(logging.INFO, "engine.server")
    came: list[float] = []
    keys: set[str | None] = set()
    registered = "registered as http://10.0.0.1/v1"

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        came.append(asyncio.get_running_loop().time())
        keys.add(request.headers.get("authorization"))
        if len(came) in (3, 4):
            return web.json_response({"error": {"message": "Not now."}}, status=503)
        return web.json_response({"renew_seconds": [0, 0.11][len(came) % 2]})

    async with handling(handle) as endpoint, announcer(endpoint, "http://10.0.0.1/v1", token=None).announced():
        await until(lambda: len(came) > 4 and caplog.messages.count(registered) > 1)
    assert keys == {None}
    assert came[1] - came[0] > 0.1 and came[2] - came[1] > 0.09, "a gateway that wants no pause gets a short one"
    told = [record.getMessage() for record in caplog.records if record.name == "engine.server"]
    assert told == [registered, "registration with the gateway failed: Not now.", registered]


async def test_a_gateway_that_does_not_answer_is_asked_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcing, "AGAIN_SECONDS", 0.001)
    monkeypatch.setattr(announcing, "CALL_SECONDS", 0.03)

    async def silent(_: web.BaseRequest) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async with handling(silent) as endpoint:
        assert await said_of(endpoint, caplog) == ["registration with the gateway failed: TimeoutError"]


async def test_a_gateway_that_does_not_answer_a_goodbye_holds_nobody_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcing, "CALL_SECONDS", 60.0)
    monkeypatch.setattr(announcing, "FAREWELL_SECONDS", 0.03)
    came = asyncio.Event()

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        came.set()
        if request.method == "DELETE":
            await asyncio.Event().wait()
        return web.json_response({"renew_seconds": 9})

    async with asyncio.timeout(20), handling(handle) as endpoint, announcer(endpoint, "http://10.0.0.1/v1").announced():
        await came.wait()
    assert caplog.messages[-1] == "deregistration from the gateway failed: TimeoutError"
