"""Faults of our own: the client learns that there was one, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.conftest import CHAT, Gateway, body, envelope


async def test_a_fault_of_our_own_tells_nothing(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(model: str) -> Any:
        raise KeyError("inner secret")

    monkeypatch.setattr(gateway.app.upstreams, "route", broken)
    answer = await gateway.post(body(), CHAT)
    assert answer.status_code == 500
    assert "inner secret" not in answer.text
    assert envelope(answer)["code"] == "internal_error"
