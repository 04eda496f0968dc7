"""What every answer says of itself."""

from __future__ import annotations

from tests.gateway.conftest import Gateway


async def test_answers_carry_the_gateways_headers(gateway: Gateway) -> None:
    streamed = await gateway.stream(n=3)
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert streamed.headers["cache-control"] == "no-cache"
    assert streamed.headers["x-accel-buffering"] == "no"
    whole = await gateway.ask(n=3)
    for headers in (streamed.headers, whole.headers):
        assert headers["x-nproxy-mode"] == "fanout"
        assert headers["x-nproxy-legs"] == "3"
        assert headers["x-nproxy-upstream"] == "fake"
        assert headers["server"] == "nproxy"
