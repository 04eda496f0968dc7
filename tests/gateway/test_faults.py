"""Faults: of our own the client learns that there was one and nothing else; of an upstream, which one it was."""

from __future__ import annotations

import logging
from typing import Any

import httpx
import pytest

from nproxy.gateway import routes
from nproxy.gateway.admin import port
from nproxy.gateway.exchange import Exchange
from tests.fakes.upstream import FakeUpstream
from tests.gateway.conftest import CHAT, Gateway, body, envelope
from tests.gateway.test_admin import fleet_for


async def test_a_fault_of_our_own_tells_nothing(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(model: str) -> Any:
        raise KeyError("inner secret")

    monkeypatch.setattr(gateway.app.upstreams, "route", broken)
    answer = await gateway.post(body(), CHAT)
    assert answer.status_code == 500
    assert "inner secret" not in answer.text
    assert envelope(answer)["code"] == "internal_error"


async def _breaks(_: object, exchange: Exchange, *__: str) -> None:
    raise RuntimeError("inner secret")


async def _breaks_off(_: object, exchange: Exchange, *__: str) -> None:
    exchange.begin(200, {}, length=2)
    await exchange.write(b"x")
    raise RuntimeError("inner secret")


@pytest.mark.parametrize("serve", [_breaks, _breaks_off])
async def test_on_both_ports_it_is_answered_once_and_told_once(
    upstream: FakeUpstream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, serve: routes.Serve
) -> None:
    """Behind a status that was sent, by the end of the connection: an answer that is cut must not look complete."""
    monkeypatch.setitem(routes._OWN, "/v1/models", routes.Endpoint("models", serve))
    monkeypatch.setitem(port._SERVED, "/health", {"GET": serve})
    async with fleet_for(upstream.url) as fleet:
        for client, path in ((fleet.gateway.client, "/v1/models"), (fleet.admin, "/health")):
            if serve is _breaks:
                answer = await client.get(path)
                assert (answer.status_code, envelope(answer)["code"]) == (500, "internal_error")
            else:
                with pytest.raises(httpx.TransportError):
                    await client.get(path)
    told = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [record.getMessage() for record in told] == ["a request failed"] * 2
    assert [vars(record)["fields"]["endpoint"] for record in told] == ["models", "admin"]


async def test_an_upstream_that_is_not_there_is_named_and_its_address_is_not(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    await upstream.stop()
    error = envelope(await gateway.ask(n=2))
    assert error["message"] == "The upstream 'fake' could not be reached."
