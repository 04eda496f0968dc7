"""L1, L6: a client that closes its socket leaves nothing behind, within one second, in every form of request."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.real.counting_proxy import counting_proxy
from tests.real.fixtures import MODEL
from tests.real.metrics import metric, wait_for
from tests.real.processes import Server, nproxy

pytestmark = pytest.mark.model

GONE_SECONDS = 1.0
WIDTH = 8


@contextmanager
def request_on_a_socket(server: Server, *, stream: bool) -> Iterator[socket.socket]:
    """A long chat request, sent on a raw socket that is closed at the end of the block."""
    body = json.dumps(
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Count from one to one thousand."}],
            "max_tokens": 4000,
            "ignore_eos": True,
            "n": WIDTH,
            "stream": stream,
        }
    ).encode()
    address = urlsplit(server.url)
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {address.netloc}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((address.hostname, address.port), timeout=30.0) as client:
        client.sendall(head.encode() + body)
        yield client


def read_text(client: socket.socket) -> None:
    """Read until the first text of any choice has come."""
    seen = b""
    while not re.search(rb'"content": ?"[^"]', seen):
        piece = client.recv(65536)
        assert piece, f"the server closed first: {seen[-500:]!r}"
        seen += piece


def inflight(server: Server) -> dict[str, float]:
    """What the gateway has in hand."""
    return {
        "requests": metric(server.url, "nproxy_inflight_requests"),
        "choices": metric(server.url, "nproxy_inflight_choices"),
        "legs": metric(server.url, "nproxy_inflight_legs"),
    }


def engine_busy(server: Server) -> dict[str, float]:
    return {
        "blocks": metric(server.url, "nproxy_engine_blocks", state="used"),
        "running": metric(server.url, "nproxy_engine_sequences", state="running"),
        "waiting": metric(server.url, "nproxy_engine_sequences", state="waiting"),
    }


def is_idle(*gauges: dict[str, float]) -> bool:
    return not any(value for gauge in gauges for value in gauge.values())


def begin(client: socket.socket, server: Server, *, stream: bool) -> None:
    """Wait until the request is under way: its choices run in the engine and, in a stream, text has come."""
    if stream:
        read_text(client)
    wait_for(lambda: engine_busy(server)["running"] == WIDTH, seconds=20.0, what=f"{WIDTH} sequences running")
    assert engine_busy(server)["blocks"] > 0


@pytest.fixture
def idle_engine(engine_road: Server) -> Server:
    wait_for(
        lambda: is_idle(inflight(engine_road), engine_busy(engine_road)), seconds=10.0, what="idle before the test"
    )
    return engine_road


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "json"])
def test_L6_the_engine_frees_everything(idle_engine: Server, stream: bool) -> None:
    with request_on_a_socket(idle_engine, stream=stream) as client:
        begin(client, idle_engine, stream=stream)
        assert inflight(idle_engine) == {"requests": 1, "choices": WIDTH, "legs": 1}
    wait_for(lambda: is_idle(inflight(idle_engine), engine_busy(idle_engine)), seconds=GONE_SECONDS, what="all is free")


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "json"])
def test_L1_all_upstream_calls_are_closed(idle_engine: Server, logs: Path, stream: bool) -> None:
    with (
        counting_proxy(idle_engine.url) as counts,
        nproxy("--upstream", f"{counts.url}/v1", "--n", "fanout", log=logs / f"leaves-{stream}.log") as gateway,
    ):
        with request_on_a_socket(gateway, stream=stream) as client:
            begin(client, idle_engine, stream=stream)
            assert counts.inflight == WIDTH
            assert inflight(gateway) == {"requests": 1, "choices": WIDTH, "legs": WIDTH}
        wait_for(
            lambda: counts.inflight == 0 and is_idle(inflight(gateway), engine_busy(idle_engine)),
            seconds=GONE_SECONDS,
            what="all calls closed, all gauges back, all blocks free",
        )
        assert counts.left == WIDTH
