"""Which ends of calls show the queue of their account that the server answers, and so has capacity."""

from __future__ import annotations

from math import inf

import pytest

from nproxy.upstreams.call_group import CallGroup
from tests.fakes.behaviour import Behaviour
from tests.fakes.upstream import FakeUpstream
from tests.upstreams.conftest import Caller, upstream_of

ACCOUNT = ("m", "")


@pytest.mark.parametrize(
    ("end", "shows"),
    [
        (Behaviour(), True),
        (Behaviour(status=500, body=b"{}"), True),
        (Behaviour(status=400, body=b"{}"), True),
        (Behaviour(status=502, body=b"{}"), False),
        (Behaviour(before_head="close"), False),
    ],
    ids=["an answer", "a fault", "a refused body", "a proxy's error", "no answer"],
)
async def test_an_answer_of_the_server_shows_it_and_a_broken_call_does_not(
    caller: Caller, end: Behaviour, shows: bool
) -> None:
    async with FakeUpstream(end) as server, upstream_of(server) as upstream:
        await upstream.call(caller.call(stream=False), CallGroup("m", account=ACCOUNT), lambda _: None)
        calls = upstream.gate.queues.of(ACCOUNT).calls
        assert (calls.answered_at > -inf) is shows
        assert not calls.standing
