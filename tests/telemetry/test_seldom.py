"""Lines that strangers can cause: one of a kind in a minute, and how many there were besides."""

from __future__ import annotations

import logging

import pytest

from nproxy.telemetry.seldom import SECONDS, Seldom


def test_of_each_kind_one_and_then_how_many(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    seldom = Seldom(logging.getLogger("nproxy.test"), clock=lambda: now)
    for at, why in ((0.0, "a"), (1.0, "a"), (2.0, "b"), (SECONDS - 1, "a"), (SECONDS, "a"), (3 * SECONDS, "a")):
        now = at
        seldom.tell(logging.WARNING, "it came", {"client": at}, why)
    assert [vars(record)["fields"] for record in caplog.records] == [
        {"why": "a", "client": 0.0},
        {"why": "b", "client": 2.0},
        {"why": "a", "client": SECONDS, "untold": 2},
        {"why": "a", "client": 3 * SECONDS},
    ]
    assert {(record.levelname, record.getMessage()) for record in caplog.records} == {("WARNING", "it came")}
