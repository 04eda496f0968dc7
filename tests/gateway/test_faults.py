"""Faults: of our own the client learns that there was one and nothing else; of an upstream, which one it was."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.upstream import FakeUpstream
from tests.gateway.conftest import CHAT, Gateway, body, envelope


async def test_a_fault_of_our_own_tells_nothing(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(model: str) -> Any:
        raise KeyError("inner secret")

    monkeypatch.setattr(gateway.app.upstreams, "route", broken)
    answer = await gateway.post(body(), CHAT)
    assert answer.status_code == 500
    assert "inner secret" not in answer.text
    assert envelope(answer)["code"] == "internal_error"


async def test_an_upstream_that_is_not_there_is_named_and_its_address_is_not(
    gateway: Gateway, upstream: FakeUpstream
) -> None:
    await upstream.stop()
    error = envelope(await gateway.ask(n=2))
    assert error["message"] == "The upstream 'fake' could not be reached."
