"""Which models an upstream takes."""

from __future__ import annotations

import asyncio

import pytest

from nproxy.upstreams.models import FRESH_SECONDS, RECENT_SECONDS, ModelList, ModelName


class Source:
    """A list that counts how often it is read."""

    def __init__(self, body: bytes = b'{"data": [{"id": "a"}, {"id": "b"}]}', status: int = 200) -> None:
        self.answer: tuple[int, bytes] | None = (status, body)
        self.reads = 0
        self.now = 0.0

    async def __call__(self) -> tuple[int, bytes] | None:
        self.reads += 1
        await asyncio.sleep(0)
        return self.answer

    def clock(self) -> float:
        return self.now


async def test_the_list_is_read_once_and_kept() -> None:
    source = Source()
    models = ModelList(None, source, clock=source.clock)
    found = await asyncio.gather(*(models.find("a") for _ in range(5)))
    assert found == [ModelName("a", listed=True)] * 5
    assert source.reads == 1
    source.now = FRESH_SECONDS
    await models.find("a")
    assert source.reads == 2


async def test_an_unknown_model_is_looked_for_again_but_not_at_every_request() -> None:
    source = Source()
    models = ModelList(None, source, clock=source.clock)
    assert await models.find("new") is None
    assert source.reads == 1
    source.now = RECENT_SECONDS
    source.answer = (200, b'{"data": [{"id": "new"}]}')
    assert await models.find("new") == ModelName("new", listed=True)
    assert source.reads == 2


async def test_Q1_unreadable_lists_take_any_model() -> None:
    for answer in (None, (500, b"no"), (200, b"<html>"), (200, b"[]"), (200, b'{"data": 3}'), (401, b"{}")):
        source = Source()
        source.answer = answer
        models = ModelList(None, source, clock=source.clock)
        assert await models.find("x") is None
        assert models.takes_any()
        assert not await models.entries()


@pytest.mark.parametrize("answer", [None, (500, b"no"), (503, b"loading"), (429, b"{}"), (401, b"{}")], ids=str)
async def test_Q1_a_list_that_was_read_stands_where_its_server_is_busy(
    answer: tuple[int, bytes] | None, caplog: pytest.LogCaptureFixture
) -> None:
    source = Source()
    models = ModelList(None, source, clock=source.clock, upstream="u")
    await models.find("a")
    for source.answer in (answer, answer, (200, b'{"data": [{"id": "c"}]}'), answer):
        source.now += FRESH_SECONDS
        known = "c" if source.answer != answer or source.now > 3 * FRESH_SECONDS else "a"
        assert await models.find(known) == ModelName(known, listed=True)
        assert await models.find("other") is None
        assert not models.takes_any() and models.readable
        assert known in await models.entries()
    why = f"GET /v1/models: {'no answer' if answer is None else f'{answer[0]} without a list of models'}"
    assert [vars(record)["fields"]["why"] for record in caplog.records] == [why] * 2, "once until one comes"
    assert caplog.messages == ["the list of models cannot be read; the previous list is used"] * 2


@pytest.mark.parametrize("answer", [(404, b"no"), (200, b"<html>")], ids=str)
async def test_Q1_a_list_that_is_gone_stands_no_more(answer: tuple[int, bytes]) -> None:
    source = Source()
    models = ModelList(None, source, clock=source.clock)
    await models.find("a")
    source.answer, source.now = answer, FRESH_SECONDS
    assert await models.find("a") is None
    assert models.takes_any()


async def test_nobody_waits_for_a_list_that_is_read_anew() -> None:
    source = Source()
    models = ModelList(None, source, clock=source.clock)
    await models.find("a")
    answered = asyncio.Event()

    async def slow() -> tuple[int, bytes]:
        await answered.wait()
        return (200, b'{"data": [{"id": "new"}]}')

    models._fetch = slow
    source.now = FRESH_SECONDS
    async with asyncio.TaskGroup() as asking:
        reads = asking.create_task(models.find("a"))
        await asyncio.sleep(0)
        async with asyncio.timeout(1):
            assert await models.find("a") == ModelName("a", listed=True)
            assert list(await models.entries()) == ["a", "b"]
        looks_for_new = asking.create_task(models.find("new"))
        await asyncio.sleep(0)
        assert not reads.done() and not looks_for_new.done(), "it may be in the list that comes"
        answered.set()
    assert reads.result() is None
    assert looks_for_new.result() == ModelName("new", listed=True)


async def test_a_list_that_is_outdated_is_waited_for() -> None:
    source = Source()
    models = ModelList(None, source, clock=source.clock)
    await models.find("a")
    source.answer = (200, b'{"data": [{"id": "new"}]}')
    models.outdated()
    assert await asyncio.gather(*(models.find("a") for _ in range(3))) == [None] * 3


async def test_that_no_list_can_be_read_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    source = Source(b"Internal Server Error", 500)
    models = ModelList(None, source, clock=source.clock, upstream="tfs")
    lists = (500, b"no"), (500, b"no"), None, (503, b"loading"), (200, b'{"data": []}'), (200, b"<html>")
    for source.answer in lists:
        await models.find("x")
        source.now += FRESH_SECONDS
    said = [vars(record)["fields"] for record in caplog.records]
    why = "GET /v1/models: {} without a list of models"
    assert said == [{"upstream": "tfs", "why": why.format(status)} for status in (500, 200)]


async def test_Q2_aliases_are_looked_up_without_reading() -> None:
    source = Source()
    models = ModelList({"alias": "a", "b": "b"}, source, clock=source.clock)
    assert await models.find("alias") == ModelName("alias", "a")
    assert await models.find("b") == ModelName("b")
    assert await models.find("a") is None
    assert not models.takes_any()
    assert source.reads == 0


async def test_Q1_a_name_without_a_tag_is_the_latest() -> None:
    """Ollama lists `llama3.2:latest` and takes `llama3.2`."""
    source = Source(b'{"data": [{"id": "a:latest", "created": 7}, {"id": "b:1b"}, {"id": "c"}, {"id": "c:latest"}]}')
    models = ModelList(None, source, clock=source.clock)
    assert await models.find("a") == ModelName("a", "a:latest", listed=True)
    assert await models.find("a:latest") == ModelName("a:latest", listed=True)
    assert await models.find("c") == ModelName("c", listed=True)
    source.now = RECENT_SECONDS
    assert await models.find("a") is not None and source.reads == 1, "known, so the list is not read again for it"
    assert await models.find("b") is None and await models.entry("b") is None
    assert await models.entry("a") == {"id": "a:latest", "created": 7}
    assert await ModelList({"mine": "a"}, source).entries() == {"mine": {"id": "a:latest", "created": 7}}


async def test_Q1_an_ollama_without_models_has_a_list_that_is_null() -> None:
    source = Source(b'{"object": "list", "data": null}')
    models = ModelList(None, source, clock=source.clock)
    assert await models.find("a") is None and models.readable and not models.takes_any()


async def test_entries_under_the_clients_names() -> None:
    source = Source(b'{"data": [{"id": "a", "max_model_len": 7}, "odd", {"id": 3}]}')
    assert await ModelList({"alias": "a", "c": "c"}, source, clock=source.clock).entries() == {
        "alias": {"id": "a", "max_model_len": 7},
        "c": {},
    }
