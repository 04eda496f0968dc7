"""No file descriptor is left for calls: that is the gateway's own trouble, and no replica is held to be down for it."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from nproxy.upstreams.looking import Look
from tests.clients import plain_client
from tests.fakes.upstream import MODEL, FakeUpstream
from tests.gateway.conftest import CHAT, Gateway, body, envelope, gateway_for


@contextmanager
def no_descriptors() -> Iterator[None]:
    """The process can open nothing while the block runs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)  # it is the lowest that is free, so all below are taken
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_calls_fail_and_the_replicas_are_believed_in(upstream: FakeUpstream) -> None:
    async with FakeUpstream() as other:
        config = {"name": "u", "replicas": [upstream.url, other.url], "n": "fanout", "models": [MODEL]}
        config |= {"breaker": {"in_a_row": 1}, "health": {"interval": 0.05, "timeout": 0.5, "down_after": 1}}
        told: list[Look] = []
        async with gateway_for({"upstreams": [config]}) as gateway, kept(gateway) as client:
            gateway.app.upstreams.tell_look = told.append
            assert (await client.get("/health")).status_code == 200, "a connection to the gateway is there to be used"
            with no_descriptors():
                error = envelope(await client.post(CHAT, json=body(n=16)))  # more than connections that were kept
                assert error["code"] == "upstream_unavailable"
                assert error["message"] == "The gateway has no resources left to call the upstream 'u'."
                await asyncio.sleep(0.5)  # looks fail too, again and again
            replicas = gateway.app.upstreams.all[0].gate.replicas
            assert [one.breaker_state for one in replicas] == ["closed", "closed"]
            assert not any(one.looks.down for one in replicas)
            assert all(look.status is not None for look in told), "others do not hear of it"
            assert (await client.post(CHAT, json=body(n=4))).status_code == 200


def kept(gateway: Gateway) -> httpx.AsyncClient:
    """A client whose connection is kept."""
    return plain_client(gateway.url, limits=httpx.Limits(max_keepalive_connections=1))
