"""Log lines: one record, one line."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from nproxy.telemetry import logs


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    for name in ("nproxy", "aiohttp"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True


def test_json_lines() -> None:
    stream = io.StringIO()
    logs.configure("info", "json", stream)
    logs.access.info("a\nb", extra={"fields": {"code": 200}})
    logs.access.debug("not this")
    (line,) = stream.getvalue().splitlines()
    record = json.loads(line)
    assert (record["message"], record["code"], record["level"]) == ("a\nb", 200, "info")
    assert record["time"].endswith("Z")


def test_text_lines_and_errors() -> None:
    stream = io.StringIO()
    logs.configure("debug", "text", stream)
    try:
        {}["why"]
    except KeyError:
        logging.getLogger("nproxy.x").exception("broke", extra={"fields": {"a": 1}})
    first, *rest = stream.getvalue().splitlines()
    assert first.endswith("broke a=1")
    assert rest[-1] == "KeyError: 'why'"


def test_configured_twice_writes_once() -> None:
    stream = io.StringIO()
    logs.configure("info", "json", stream)
    logs.configure("info", "json", stream)
    logs.access.info("once")
    assert len(stream.getvalue().splitlines()) == 1
