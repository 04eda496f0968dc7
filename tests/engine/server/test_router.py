"""An inbox holds what one request has still to take, and no more than that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Literal, cast

import pytest

from engine.channel import CoreClient
from engine.config import EngineConfig
from engine.messages import Abort, Add, Embed, Embedded, GroupFailed, Sampling, Started, Stats, StepDone, TokenDrawn
from engine.server.metrics import Metrics
from engine.server.router import FULL, Inbox, Router
from nproxy.openai.errors import ApiError, invalid_request
from tests.fakes.runner import ready
from tests.waiting import until

Kind = Literal["refused", "unsatisfiable", "grammar", "busy", "failed"]

TOKEN = TokenDrawn(1, 0, 5)


async def test_all_that_is_there_is_taken_at_once() -> None:
    inbox = Inbox()
    inbox.put([TOKEN])
    inbox.put([TOKEN, TOKEN])
    assert await inbox.take() == [TOKEN] * 3


async def test_taking_waits_for_the_next() -> None:
    inbox = Inbox()
    async with asyncio.TaskGroup() as group:
        taking = group.create_task(inbox.take())
        await asyncio.sleep(0)
        assert not taking.done()
        inbox.put([TOKEN])
    assert taking.result() == [TOKEN]


async def test_an_error_comes_behind_the_tokens_and_stays() -> None:
    inbox = Inbox()
    inbox.put([TOKEN])
    inbox.fail(invalid_request("first"))
    inbox.fail(invalid_request("second"))
    assert await inbox.take() == [TOKEN]
    for _ in range(2):
        with pytest.raises(ApiError, match="first"):
            await inbox.take()


async def test_M1_a_full_inbox_ends_its_request_and_holds_nothing() -> None:
    inbox = Inbox()
    for _ in range(FULL):
        inbox.put([TOKEN])
    inbox.put([TOKEN])
    for _ in range(2):
        with pytest.raises(ApiError) as ended:
            await inbox.take()
        assert (ended.value.status, ended.value.code) == (408, "slow_reader")
        inbox.put([TOKEN])


class Recorder:
    """The core's end of a router, which keeps what it is told and never answers."""

    ready = ready()
    config = EngineConfig("none", max_sequences=16, max_queue=8)

    def __init__(self) -> None:
        self.added: list[Add | Embed] = []
        self.aborts: list[Abort] = []

    def add(self, message: Add | Embed) -> None:
        self.added.append(message)

    def abort(self, message: Abort) -> None:
        self.aborts.append(message)

    @property
    def aborted(self) -> list[int]:
        return [message.group for message in self.aborts]


async def test_embeddings_that_nobody_waits_for_are_aborted() -> None:
    core = Recorder()
    router = Router(cast(CoreClient, core), Metrics(core.ready))
    asking = asyncio.create_task(router.embed([Embed(0, (1,), "last")] * 100))
    await until(lambda: core.added)
    groups = [message.group for message in core.added]
    assert len(set(groups)) == len(groups) == 16  # the others wait, so that one request does not fill the queue
    assert not router.idle
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert sorted(core.aborted) == groups
    assert router.idle


class Ending(Recorder):
    """A core that is closed after one step, which fails the first group and has the vector of the second."""

    async def __aiter__(self) -> AsyncIterator[StepDone]:
        failed, embedded = GroupFailed(0, "It failed.", "failed"), Embedded(1, (1.0,))
        yield StepDone((), (failed,), 0.1, 2, Stats(), taken=3, embedded=(embedded,))


async def test_what_comes_for_those_who_leave_in_that_moment_disturbs_nobody() -> None:
    core = Ending()
    router = Router(cast(CoreClient, core), Metrics(core.ready))
    asking = asyncio.create_task(router.embed([Embed(0, (1,), "last")] * 3))
    await until(lambda: len(core.added) == 3)
    asking.cancel()
    await asyncio.sleep(0)  # it has begun to leave, and its groups are known yet
    assert not router.idle
    await router.run()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert (sorted(core.aborted), router.idle) == ([0, 1, 2], True)


async def test_who_is_there_when_the_core_is_closed_is_told_and_who_comes_later_too() -> None:
    core = Ending()
    router = Router(cast(CoreClient, core), Metrics(core.ready))
    vector = asyncio.create_task(router.embed([Embed(0, (1,), "last")]))
    await until(lambda: core.added)
    with router.submit(several(1, 2)), router.submit(several(1, 2)) as ticket:
        core.added.clear()
        await router.run()
        with pytest.raises(ApiError, match="failed"):
            await vector
        with pytest.raises(ApiError) as told:
            await ticket.inbox.take()
        assert (told.value.status, told.value.code) == (503, "engine_stopped")
        with pytest.raises(ApiError, match=told.value.message):
            router.submit(several(1, 1)).__enter__()
    assert core.added == []


async def test_embeddings_end_with_the_router() -> None:
    core = Recorder()
    router = Router(cast(CoreClient, core), Metrics(core.ready))
    asking = asyncio.create_task(router.embed([Embed(0, (1,), "last")] * 2))
    await until(lambda: core.added)
    router.end(invalid_request("It is over."))
    with pytest.raises(ApiError, match="over"):
        await asking
    with pytest.raises(ApiError, match="over"):
        await router.embed([Embed(0, (1,), "last")])


async def test_only_the_first_end_counts() -> None:
    core = Recorder()
    router = Router(cast(CoreClient, core), Metrics(core.ready))
    for why in ("first", "second"):
        router.end(invalid_request(why))
    with pytest.raises(ApiError, match="first"):
        router.submit(several(1, 1)).__enter__()
    with pytest.raises(ApiError, match="first"):
        await router.embed([Embed(0, (1,), "last")])
    assert (core.added, router.idle) == ([], True)


class Answering(Recorder):
    """A core that answers each Embed in a step of its own: with its prompt as the vector, or that it is busy."""

    def __init__(self, busy: set[int]) -> None:
        """busy: which of the messages are refused, in the order in which they come."""
        super().__init__()
        self.busy = busy
        self.come: asyncio.Queue[int] = asyncio.Queue()

    def add(self, message: Add | Embed) -> None:
        self.come.put_nowait(len(self.added))
        super().add(message)

    async def __aiter__(self) -> AsyncIterator[StepDone]:
        while True:
            number = await self.come.get()
            message = self.added[number]
            assert isinstance(message, Embed)
            failed = (GroupFailed(message.group, "Too many wait.", "busy"),) if number in self.busy else ()
            vector = tuple(map(float, message.prompt))
            embedded = () if failed else (Embedded(message.group, vector),)
            yield StepDone((), failed, 0.1, 1, Stats(), taken=number + 1, embedded=embedded)


async def test_vectors_that_are_there_are_not_lost_when_the_core_takes_no_more_for_a_while() -> None:
    core = Answering(busy={20, 21, 25, 100, 101, 102})
    router = Router(cast(CoreClient, core), Metrics(core.ready))
    running = asyncio.create_task(router.run())
    vectors = await router.embed([Embed(0, (token,), "last") for token in range(100)])
    running.cancel()
    assert vectors == [(float(token),) for token in range(100)]
    assert len(core.added) == 100 + len(core.busy)
    assert (core.aborted, router.idle) == ([], True)


async def test_embeddings_for_which_there_is_no_room_at_all_are_refused() -> None:
    core = Answering(busy={0})
    router = Router(cast(CoreClient, core), Metrics(core.ready))
    running = asyncio.create_task(router.run())
    with pytest.raises(ApiError) as refused:
        await router.embed([Embed(0, (token,), "last") for token in range(100)])
    running.cancel()
    assert (refused.value.status, refused.value.code) == (429, "overloaded")
    assert len(core.added) < 100
    assert router.idle


def several(prompts: int, n: int) -> list[Add]:
    return [Add.alike(0, (1,), n, 0, 4, Sampling(), frozenset()) for _ in range(prompts)]


@pytest.mark.parametrize(("prompts", "n"), [(25, 1), (2, 13), (4, 16)])
async def test_N3_more_than_an_idle_engine_takes_is_a_400_and_none_of_it_is_sent(prompts: int, n: int) -> None:
    core = Recorder()
    router = Router(cast(CoreClient, core), Metrics(core.ready))
    with pytest.raises(ApiError, match=f"{prompts} prompts ask for {prompts * n} choices .* at most 24") as refused:
        router.submit(several(prompts, n)).__enter__()
    assert (refused.value.status, refused.value.code) == (400, "request_too_large")
    assert (core.added, router.idle) == ([], True)


async def test_several_prompts_of_which_one_can_never_run_are_a_400_and_none_is_sent() -> None:
    core = Recorder()
    router = Router(cast(CoreClient, core), Metrics(core.ready))
    short, long = several(1, 2)[0], Add.alike(0, (1,) * 5000, 2, 0, 4, Sampling(), frozenset())
    with pytest.raises(ApiError, match="the prompt has 5000 tokens") as refused:
        router.submit([short, long]).__enter__()
    assert (refused.value.status, refused.value.code) == (400, "request_too_large")
    assert (core.added, router.idle) == ([], True)


@pytest.mark.parametrize(("prompts", "n"), [(24, 1), (2, 12), (1, 40)])  # the core says itself why one is too wide
async def test_what_an_idle_engine_takes_is_sent_whole(prompts: int, n: int) -> None:
    core = Recorder()
    router = Router(cast(CoreClient, core), Metrics(core.ready))
    with router.submit(several(prompts, n)) as ticket:
        assert tuple(message.group for message in core.added) == ticket.groups
        assert len(core.added) == prompts


class Failing(Recorder):
    """A core whose only step fails the first group, which cannot draw, and draws a token for the second."""

    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.failed = GroupFailed(0, "It failed.", kind)

    async def __aiter__(self) -> AsyncIterator[StepDone]:
        yield StepDone((TOKEN,), (self.failed,), 0.1, 0, Stats(), taken=1, started=(Started(0, 0), Started(1, 0)))


@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [
        ("refused", 400, "request_too_large"),
        ("unsatisfiable", 400, "unsatisfiable_rules"),
        ("grammar", 400, "unsatisfiable_rules"),
        ("busy", 429, "overloaded"),
        ("failed", 500, "engine_error"),
    ],
)
async def test_a_failure_has_the_status_and_code_of_its_kind(kind: Kind, status: int, code: str) -> None:
    core = Failing(kind)
    router = Router(cast(CoreClient, core), Metrics(core.ready))
    with router.submit(several(1, 2)) as ticket:
        await router.run()
        with pytest.raises(ApiError, match=r"It failed\.") as failed:
            await ticket.inbox.take()
    assert (failed.value.status, failed.value.code) == (status, code)
    assert dict(failed.value.headers) == ({"retry-after": "1"} if kind == "busy" else {})


@pytest.mark.parametrize(
    ("kind", "message", "param"),
    [
        ("unsatisfiable", "No token is left to sample under 'bad_words' and 'regex'.", "bad_words"),
        ("grammar", "It failed.", "regex"),
        ("busy", "It failed.", None),
    ],
)
async def test_a_request_without_a_token_left_hears_of_its_own_fields(
    kind: Kind, message: str, param: str | None
) -> None:
    core = Failing(kind)
    router = Router(cast(CoreClient, core), Metrics(core.ready))
    with router.submit(several(1, 2), ("bad_words", "regex")) as ticket:
        await router.run()
        with pytest.raises(ApiError) as failed:
            await ticket.inbox.take()
    assert (failed.value.message, failed.value.param) == (message, param)


async def test_a_prompt_that_fails_in_the_first_step_is_all_that_a_request_hears_of() -> None:
    core = Failing("busy")
    router = Router(cast(CoreClient, core), Metrics(core.ready))
    with router.submit(several(2, 1)) as ticket:
        await router.run()
        with pytest.raises(ApiError, match=r"It failed\."):
            await ticket.inbox.take()
    assert core.aborted == [0, 1]


async def test_a_group_hears_of_its_start_before_its_tokens() -> None:
    core = Failing("busy")
    router = Router(cast(CoreClient, core), Metrics(core.ready))
    with router.submit(several(1, 1)), router.submit(several(1, 1)) as ticket:
        await router.run()
        assert await ticket.inbox.take() == [Started(1, 0), TOKEN]


async def test_what_is_cut_are_single_choices_each_of_its_own_group() -> None:
    core = Recorder()
    router = Router(cast(CoreClient, core), Metrics(core.ready))
    with router.submit(several(2, 3)) as ticket:
        ticket.cut([(0, 2), (1, 0), (0, 1)])
        assert core.aborts == [Abort(0, (2, 1)), Abort(1, (0,))]


@pytest.mark.parametrize(("over", "aborted"), [(False, [0, 1]), (True, [])])
async def test_only_a_request_that_is_not_over_is_aborted(over: bool, aborted: list[int]) -> None:
    core = Recorder()
    router = Router(cast(CoreClient, core), Metrics(core.ready))
    with router.submit(several(2, 1)) as ticket:
        ticket.over = over
    assert (core.aborted, router.idle) == (aborted, True)


async def test_N3_each_group_tells_what_comes_behind_it() -> None:
    core = Recorder()
    router = Router(cast(CoreClient, core), Metrics(core.ready))
    with router.submit(several(3, 2)):
        assert [message.to_come for message in core.added if isinstance(message, Add)] == [4, 2, 0]
