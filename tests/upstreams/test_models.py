"""Which models an upstream takes, and when its list is read."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from nproxy.upstreams.models import (
    FIRST_SECONDS,
    FRESH_SECONDS,
    RECENT_SECONDS,
    WAIT_SECONDS,
    ListAnswer,
    ModelList,
    ModelName,
)

AB = (200, b'{"data": [{"id": "a"}, {"id": "b"}]}')


def read(answer: ListAnswer = AB, configured: Mapping[str, str] | None = None, upstream: str = "") -> ModelList:
    """A list that was read at the time 0, without delay."""
    models = ModelList(configured, upstream)
    again(models, answer, 0.0)
    return models


def again(models: ModelList, answer: ListAnswer, now: float, seconds: float = 0.0) -> None:
    """Read the list again. seconds: how long that takes."""
    models.began(now)
    models.take(answer, now + seconds)


def test_what_is_listed_is_found() -> None:
    models = read()
    assert models.find("a") == ModelName("a", listed=True)
    assert models.find("c") is None and models.lacks("c") and not models.takes_any()


def test_an_id_that_no_client_can_name_is_left_out() -> None:
    """It would also be a label that /metrics cannot write."""
    models = read((200, b'{"data": [{"id": "a\\ud800"}, {"id": "b"}, {"id": "\\ud83d\\ude00"}]}'))
    assert [*models.entries()] == ["b", "\U0001f600"]


def test_Q1_unreadable_lists_take_any_model() -> None:
    for answer in (None, (500, b"no"), (200, b"<html>"), (200, b"[]"), (200, b'{"data": 3}'), (401, b"{}")):
        models = read(answer)
        assert models.find("x") is None
        assert models.takes_any()
        assert not models.entries()


@pytest.mark.parametrize("answer", [None, (500, b"no"), (503, b"loading"), (429, b"{}"), (401, b"{}")], ids=str)
def test_Q1_a_list_that_was_read_stands_where_its_server_is_busy(
    answer: ListAnswer, caplog: pytest.LogCaptureFixture
) -> None:
    models = read(upstream="u")
    for came, known in ((answer, "a"), (answer, "a"), ((200, b'{"data": [{"id": "c"}]}'), "c"), (answer, "c")):
        again(models, came, 0.0)
        assert models.find(known) == ModelName(known, listed=True)
        assert models.find("other") is None
        assert not models.takes_any() and models.readable
        assert known in models.entries()
    why = f"GET /v1/models: {'no answer' if answer is None else f'{answer[0]} without a list of models'}"
    assert [vars(record)["fields"]["why"] for record in caplog.records] == [why] * 2, "once until one comes"
    assert caplog.messages == ["the list of models cannot be read; the previous list is used"] * 2


@pytest.mark.parametrize("answer", [(404, b"no"), (200, b"<html>")], ids=str)
def test_Q1_a_list_that_is_gone_stands_no_more(answer: ListAnswer) -> None:
    models = read()
    again(models, answer, FRESH_SECONDS)
    assert models.find("a") is None
    assert models.takes_any()


def test_that_no_list_can_be_read_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    lists: tuple[ListAnswer, ...] = ((500, b"no"), None, (503, b"loading"), (200, b'{"data": []}'), (200, b"<html>"))
    models = read((500, b"Internal Server Error"), upstream="tfs")
    for answer in lists:
        again(models, answer, 0.0)
    said = [vars(record)["fields"] for record in caplog.records]
    why = "GET /v1/models: {} without a list of models"
    assert said == [{"upstream": "tfs", "why": why.format(status)} for status in (500, 200)]


def test_what_servers_announce_counts_at_once_and_no_longer_than_they_are_there() -> None:
    models = ModelList(None)
    models.announce({"new"})
    assert models.find("new") == ModelName("new", listed=True) and models.lacks("a")
    again(models, AB, 0.0)
    assert [*models.entries()] == ["new", "a", "b"]
    models.announce(())
    assert models.lacks("new") and models.find("a") is not None


def test_Q2_aliases_are_looked_up_without_a_list() -> None:
    models = ModelList({"alias": "a", "b": "b"})
    assert models.find("alias") == ModelName("alias", "a")
    assert models.find("b") == ModelName("b")
    assert models.find("a") is None
    assert not models.takes_any()


def test_Q1_a_name_without_a_tag_is_the_latest() -> None:
    """Ollama lists `llama3.2:latest` and takes `llama3.2`."""
    listed = 200, b'{"data": [{"id": "a:latest", "created": 7}, {"id": "b:1b"}, {"id": "c"}, {"id": "c:latest"}]}'
    models = read(listed)
    assert models.find("a") == ModelName("a", "a:latest", listed=True)
    assert models.find("a:latest") == ModelName("a:latest", listed=True)
    assert models.find("c") == ModelName("c", listed=True)
    assert models.find("b") is None and models.entry("b") is None
    assert models.entry("a") == {"id": "a:latest", "created": 7}
    assert read(listed, {"mine": "a"}).entries() == {"mine": {"id": "a:latest", "created": 7}}


def test_Q1_an_ollama_without_models_has_a_list_that_is_null() -> None:
    models = read((200, b'{"object": "list", "data": null}'))
    assert models.find("a") is None and models.readable and not models.takes_any()


def test_entries_under_the_clients_names() -> None:
    listed = 200, b'{"data": [{"id": "a", "max_model_len": 7}, "odd", {"id": 3}]}'
    models = read(listed, {"alias": "a", "c": "c"})
    assert models.entries() == {"alias": {"id": "a", "max_model_len": 7}, "c": {}}
    assert models.entry("alias") == {"id": "a", "max_model_len": 7}


def test_a_list_is_read_when_it_is_looked_at_and_old() -> None:
    models = ModelList(None)
    assert not models.due, "nobody has looked at it"
    assert models.want(0.0) and models.due
    again(models, AB, 0.0)
    assert not models.want(FRESH_SECONDS - 1) and not models.due
    assert models.want(FRESH_SECONDS) and models.due


def test_a_list_that_lacks_a_model_is_read_sooner() -> None:
    models = read()
    assert not models.want(RECENT_SECONDS - 1, lacking=True)
    assert models.want(RECENT_SECONDS, lacking=True)


def test_where_there_is_no_list_none_is_looked_for_sooner() -> None:
    """All requests for the models of such an upstream are for models that no list has."""
    models = read((404, b"no"))
    assert not models.want(FRESH_SECONDS - 1, lacking=True)
    assert models.want(FRESH_SECONDS, lacking=True)


@pytest.mark.parametrize("answer", [None, (503, b"loading")], ids=str)
def test_the_list_of_a_server_that_starts_is_read_soon(answer: ListAnswer) -> None:
    models = read(answer)
    assert not models.want(RECENT_SECONDS - 1)
    assert models.want(RECENT_SECONDS)
    again(models, AB, RECENT_SECONDS)
    again(models, answer, FRESH_SECONDS)
    assert not models.want(2 * FRESH_SECONDS - 1), "there is a list"


def test_there_is_one_reading_at_a_time() -> None:
    models = ModelList(None)
    models.want(0.0)
    models.began(0.0)
    assert models.want(FRESH_SECONDS) and not models.due
    models.take(AB, FRESH_SECONDS)
    assert not models.due


def test_servers_that_change_while_the_list_is_read_have_it_read_again() -> None:
    models = read()
    models.began(FRESH_SECONDS)
    models.outdated()
    assert not models.due, "one reading at a time"
    models.take(AB, FRESH_SECONDS)
    assert models.due


def test_servers_that_change_before_anybody_looks_at_the_list_have_nothing_read() -> None:
    models = ModelList(None)
    models.outdated()
    assert not models.due


def test_only_a_request_whose_model_no_list_has_waits_for_one_that_is_known() -> None:
    models = read()
    assert models.patience(lost=True) == 0, "nobody reads it"
    models.want(FRESH_SECONDS)
    assert (models.patience(lost=True), models.patience(lost=False)) == (WAIT_SECONDS, 0)
    models.began(FRESH_SECONDS)
    assert (models.patience(lost=True), models.patience(lost=False)) == (WAIT_SECONDS, 0)


def test_a_list_that_was_never_read_is_waited_for() -> None:
    models = ModelList(None)
    models.want(0.0)
    assert (models.patience(lost=True), models.patience(lost=False)) == (FIRST_SECONDS, WAIT_SECONDS)


@pytest.mark.parametrize("answer", [None, AB])
def test_nobody_waits_again_for_an_upstream_that_hangs(answer: ListAnswer) -> None:
    models = read()
    again(models, answer, FRESH_SECONDS, seconds=WAIT_SECONDS + 1)
    models.want(3 * FRESH_SECONDS)
    assert models.due and models.patience(lost=True) == 0
    again(models, AB, 3 * FRESH_SECONDS)
    models.want(5 * FRESH_SECONDS)
    assert models.patience(lost=True) == WAIT_SECONDS, "it is quick again"


def test_where_the_servers_have_changed_an_answer_is_expected_again() -> None:
    models = ModelList(None)
    again(models, None, 0.0, seconds=WAIT_SECONDS + 1)
    models.outdated()
    assert models.due and models.patience(lost=True) == WAIT_SECONDS
