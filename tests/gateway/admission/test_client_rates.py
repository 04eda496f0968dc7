"""The client counts: rates and their headers, guesses, and what really came."""

from __future__ import annotations

import asyncio

import pytest

from nproxy.gateway.callers import Caller, Rates
from nproxy.openai.errors import ApiError
from tests.gateway.admission.scene import Begin, held, refusal


def ann(**rates: int) -> Caller:
    return Caller("ann", "ann", rates=Rates(**rates))


async def test_rates_and_their_headers(begin: Begin) -> None:
    scene, caller = begin(), ann(requests=2, tokens=6000)
    scene.stop_the_clock()
    own = Caller("own", "own", rates=Rates(requests=1000, choices=10))
    assert scene.client.headers(caller)["x-ratelimit-remaining-requests"] == "2"
    assert scene.client.headers(Caller("", "")) == {}, "it has no rates"
    with await scene.client.admit(caller, "u", 1, tokens=1000) as grant:
        assert scene.client.headers(caller)["x-ratelimit-remaining-tokens"] == "5000"
        grant.spend(10, 90)
        grant.spend(1, 99)
    async with held(scene, 1, caller):
        headers = scene.client.headers(caller)
    assert headers["x-ratelimit-limit-requests"] == "2"
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert headers["x-ratelimit-remaining-tokens"] == "5800"
    assert headers["x-ratelimit-reset-requests"] == "1m0s"
    error = await refusal(scene, 1, caller)
    assert (error.status, error.code, error.type) == (429, "rate_limit_exceeded", "rate_limit_error")
    assert error.headers["retry-after"] == "30"
    assert scene.metric("nproxy_key_limited_total", key="ann", what="requests") == 1
    assert scene.metric("nproxy_key_tokens_total", key="ann", type="completion") == 189
    with pytest.raises(ApiError) as shut, scene.client.guard(caller):
        pass
    assert shut.value.code == "rate_limit_exceeded", "it need not be asked for its body"
    async with held(scene, 7, own):
        assert scene.client.headers(own)["x-ratelimit-remaining-choices"] == "3"
        assert scene.client.headers(own)["x-ratelimit-limit-requests"] == "1000"
    assert (await refusal(scene, 7, own)).code == "rate_limit_exceeded"


@pytest.mark.parametrize("leaves", ["by itself", "late"])
async def test_what_one_that_waited_gives_back_is_known_at_the_door(begin: Begin, leaves: str) -> None:
    """Another request of its key was told meanwhile that all is spent; now it is not."""
    scene = begin(max_inflight=1, queue_seconds=60 if leaves == "by itself" else 0.1)
    caller = ann(choices=2)
    scene.stop_the_clock()
    async with held(scene, 1, caller):
        waits = asyncio.create_task(scene.client.admit(caller, "u", 1))
        await scene.settled()
        assert (await refusal(scene, 1, caller, upstream="v")).code == "rate_limit_exceeded"
        with pytest.raises(ApiError), scene.client.guard(caller):
            pass
        if leaves == "late":
            scene.server._tell(scene.server.ledger.tick(scene.server._clock() + 1))
        else:
            waits.cancel()
        await asyncio.gather(waits, return_exceptions=True)
        await scene.settled()
        assert scene.client.headers(caller)["x-ratelimit-remaining-choices"] == "1"
        with scene.client.guard(caller):
            pass
        async with held(scene, 1, caller, "v"):
            pass


@pytest.mark.parametrize(
    ("guess", "came", "told", "remaining"),
    [(1000, 900, None, "5000"), (1000, 2500, None, "3500"), (1000, 2500, 10, "5990"), (9000, 7000, None, "0")],
)
async def test_what_came_counts_where_it_is_more_than_the_guess_and_nobody_told(
    begin: Begin, guess: int, came: int, told: int | None, remaining: str
) -> None:
    scene, caller = begin(), ann(tokens=6000)
    scene.stop_the_clock()
    with await scene.client.admit(caller, "u", 1, tokens=guess) as grant:
        grant.spent_at_least(200)
        grant.spent_at_least(came - 200)
        if told is not None:
            grant.spend(told, 0)
    await scene.settled()
    if came > 6000:
        assert (await refusal(scene, 1, caller)).headers["retry-after"] == "10", "1,000 more than a minute's worth"
    else:
        async with held(scene, 1, caller):
            assert scene.client.headers(caller)["x-ratelimit-remaining-tokens"] == remaining


@pytest.mark.parametrize(("came", "told", "remaining"), [(0, None, "6000"), (300, None, "5700"), (300, 2000, "4000")])
async def test_an_answer_that_broke_off_is_charged_as_told_or_as_what_came(
    begin: Begin, came: int, told: int | None, remaining: str
) -> None:
    scene, caller = begin(), ann(tokens=6000)
    scene.stop_the_clock()
    with await scene.client.admit(caller, "u", 1, tokens=1000) as grant:
        grant.spent_at_least(came)
        if told is not None:
            grant.spend(told, 0)
        grant.broke_off()
    await scene.settled()
    assert scene.client.headers(caller)["x-ratelimit-remaining-tokens"] == remaining


@pytest.mark.parametrize(("tokens", "remaining"), [(None, "5000"), (0, "6000"), (7000, "0")])
async def test_a_guess_stands_unless_somebody_told(begin: Begin, tokens: int | None, remaining: str) -> None:
    scene, caller = begin(), ann(tokens=6000)
    scene.stop_the_clock()
    with await scene.client.admit(caller, "u", 1, tokens=1000) as grant:
        if tokens == 0:
            grant.nothing_came()
        elif tokens:
            grant.spend(tokens, 0)
            grant.nothing_came()
    await scene.settled()
    assert scene.client.headers(caller)["x-ratelimit-remaining-tokens"] == remaining, "without asking again"
    if tokens == 7000:
        assert (await refusal(scene, 1, caller)).code == "rate_limit_exceeded"
        assert scene.metric("nproxy_key_limited_total", key="ann", what="tokens") == 1
    else:
        async with held(scene, 1, caller):
            pass
    assert scene.client.headers(caller)["x-ratelimit-remaining-tokens"] == remaining
