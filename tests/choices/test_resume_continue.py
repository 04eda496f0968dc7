"""Continue: what a choice has said goes as a prefix, and another call goes on behind it."""

from __future__ import annotations

from typing import Any

import pytest

from nproxy.choices.capability import Capability
from nproxy.choices.commands import Retried, Spent
from nproxy.choices.continuation import as_one_call
from nproxy.choices.events import FailureKind
from nproxy.choices.leg import Prefix
from nproxy.openai.requests import Request
from nproxy.openai.usage import Usage
from tests.choices.conduct_player import (
    Play,
    body_of,
    chat,
    choices_in,
    completion,
    contents,
    continued,
    finishes,
)
from tests.choices.upstream_says import ROLE, STOP, delta, status, text, usage, usage_chunk

USER = {"role": "user", "content": "hi"}


def sent(play: Play, leg: int = 0) -> Any:
    """The body of the call that is open."""
    return body_of(play, play.open[leg])


def test_a_prompt_is_never_longer_than_that_of_the_call_that_continued_it() -> None:
    """Servers may count the same prompt differently."""
    assert as_one_call(Usage(5, 2), Prefix("x", 1), 8) == Usage(5, 2)
    assert as_one_call(Usage(9, 2), Prefix("x", 1), 8) == Usage(8, 3)


@pytest.mark.parametrize("limit", ["max_tokens", "max_completion_tokens", "n_predict"])
def test_a_limit_of_nothing_leaves_nothing_to_continue_with(limit: str) -> None:
    play = continued(chat(stream=True, **{limit: 0}))
    play.breaks_off(0, ROLE, delta("x"))
    assert play.finish == FailureKind.CUT and play.resumed == ["continue impossible"]


def test_chat_by_a_flag() -> None:
    play = continued(chat(stream=True, seed=5, max_tokens=9, max_completion_tokens=8, min_tokens=4))
    before = sent(play)
    play.breaks_off(0, ROLE, delta("Hel"), delta("lo "))
    assert play.timers["retry:0"] == 0.125
    play.fires("retry:0")
    assert sent(play) == before | {
        "messages": [USER, {"role": "assistant", "content": "Hello "}],
        "continue_final_message": True,
        "add_generation_prompt": False,
        "max_tokens": 7,
        "max_completion_tokens": 6,
        "min_tokens": 2,
    }
    assert play.open[0].attempt == 1
    play.streams(0, ROLE, delta("you"), STOP)
    assert contents(play.frames) == {0: "Hello you"} and finishes(play.frames) == [0]
    assert play.resumed == ["continue ok"] and play.of(Retried) == []
    assert sum(bool(choice["delta"].get("role")) for choice in choices_in(play.frames)) == 1


def test_no_least_is_left_where_more_has_come() -> None:
    play = continued(chat(stream=True, min_tokens=1))
    play.breaks_off(0, delta("a"), delta("b"))
    play.fires("retry:0")
    assert sent(play)["min_tokens"] == 0


def test_no_limit_stays_none() -> None:
    play = continued(chat(stream=True, n_predict=-1))
    play.breaks_off(0, delta("a"))
    play.fires("retry:0")
    assert sent(play)["n_predict"] == -1


def test_a_chunk_without_text_is_nothing_else() -> None:
    play = continued(chat(stream=True))
    play.breaks_off(0, delta(role="assistant"), delta("a"), delta(content=None, reasoning=None, logprobs={}))
    play.fires("retry:0")
    assert sent(play)["messages"][-1]["content"] == "a"


def test_chat_by_its_place() -> None:
    play = continued(chat(stream=True), chat_continues="trailing")
    before = sent(play)
    play.breaks_off(0, ROLE, delta("a"))
    play.fires("retry:0")
    assert sent(play) == before | {"messages": [USER, {"role": "assistant", "content": "a"}]}


@pytest.mark.parametrize(
    ("way", "flag", "messages"),
    [
        ("trailing", {}, [USER, {"role": "assistant", "name": "x", "content": "begunmore"}]),
        ("flag", {"continue_final_message": True}, [USER, {"role": "assistant", "name": "x", "content": "begunmore"}]),
        (
            "flag",
            {},
            [USER, {"role": "assistant", "name": "x", "content": "begun"}, {"role": "assistant", "content": "more"}],
        ),
    ],
)
def test_a_message_that_the_client_began(way: Any, flag: dict[str, bool], messages: list[Any]) -> None:
    begun = [USER, {"role": "assistant", "name": "x", "content": "begun"}]
    play = continued(chat(stream=True, messages=begun, **flag), chat_continues=way)
    play.breaks_off(0, ROLE, delta("more"))
    play.fires("retry:0")
    assert sent(play)["messages"] == messages


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [({}, "hiab"), ({"prompt": ["hi"]}, "hiab"), ({"prompt": ["hi", "ho"]}, "hiab"), ({"suffix": "z"}, "hiab")],
)
def test_legacy_prompts(fields: dict[str, Any], prompt: str) -> None:
    play = continued(completion(stream=True, **fields), Capability(prompt_lists=False))
    play.breaks_off(0, text("a"), text("b"))
    play.fires("retry:0")
    assert sent(play)["prompt"] == prompt


def test_legacy_prompts_need_no_word_on_chat() -> None:
    play = continued(completion(stream=True), chat_continues="no")
    play.breaks_off(0, text("a"))
    play.fires("retry:0")
    assert sent(play)["prompt"] == "hia"


def test_a_prompt_that_was_to_be_echoed() -> None:
    play = continued(completion(stream=True, echo=True))
    play.breaks_off(0, text("hi"), text(" you"))
    play.fires("retry:0")
    assert (sent(play)["prompt"], sent(play)["echo"]) == ("hi you", False)


ECHOES = [[["hi", " ho"], [" you"]], [["hi"], [" ho", " you"]], [["hi"], [" h", "o"], [" you"]]]


@pytest.mark.parametrize("chunks", ECHOES, ids=["whole", "with-the-first-token", "in-pieces"])
@pytest.mark.parametrize("scored", [False, True])
def test_an_echoed_prompt_is_not_counted_as_the_answer(chunks: list[list[str]], scored: bool) -> None:
    asked = {"max_tokens": 2, "stream_options": {"include_usage": True}}
    play = continued(completion(stream=True, echo=True, prompt="hi ho", **asked))
    told = [{"tokens": tokens, "token_logprobs": [-1.0] * len(tokens)} if scored else None for tokens in chunks]
    play.breaks_off(0, *(text("".join(tokens), logprobs=beside) for tokens, beside in zip(chunks, told, strict=True)))
    play.fires("retry:0")
    assert (sent(play)["prompt"], sent(play)["max_tokens"]) == ("hi ho you", 1)
    play.streams(0, text("!", finish="length"), usage_chunk(3, 1))
    assert play.frames[-2]["usage"] == usage(2, 2)


def test_of_an_echo_that_passes_unparsed_the_prompt_is_not_counted_either() -> None:
    play = continued(completion(stream=True, echo=True, prompt="0123 \u00e9", max_tokens=9))
    play.breaks_off(0, *(text(said) for said in "0123 \u00e9abcd"))
    play.fires("retry:0")
    assert sent(play)["max_tokens"] == 5


def test_offsets_run_on() -> None:
    def event(said: str, at: int) -> bytes:
        return text(said, logprobs={"tokens": [said], "token_logprobs": [-1.0], "text_offset": [at]})

    play = continued(completion(stream=True, logprobs=1, max_tokens=9))
    play.breaks_off(0, event("ab", 0), event("c", 2))
    play.fires("retry:0")
    assert sent(play)["max_tokens"] == 7
    play.streams(0, event("de", 0), event("f", 2), text("", finish="stop"))
    offsets = [choice["logprobs"]["text_offset"] for choice in choices_in(play.frames) if choice["logprobs"]]
    assert offsets == [[0], [2], [3], [5]]


def test_tokens_are_counted_by_their_log_probabilities() -> None:
    told = {"content": [{"token": token, "logprob": -1.0} for token in ("a", "b", "c")]}
    play = continued(chat(stream=True, logprobs=True, max_tokens=9))
    play.breaks_off(0, ROLE, delta("abc", logprobs=told))
    play.fires("retry:0")
    assert sent(play)["max_tokens"] == 6


ANY: dict[str, Any] = {"stream": True}
LIMITED = chat(stream=True, max_tokens=1)
LISTED = [{"role": "assistant", "content": [{"type": "text", "text": "x"}]}]
CANNOT: list[tuple[str, Request, tuple[bytes, ...], dict[str, Any]]] = [
    ("the server does not", chat(**ANY), (delta("a"),), {"chat_continues": "no"}),
    ("reasoning", chat(**ANY), (delta(reasoning="a"), delta("b")), {}),
    ("reasoning, unparsed", chat(**ANY), (*(delta(reasoning=str(i)) for i in range(9)), delta("b")), {}),
    ("a refusal", chat(**ANY), (delta(refusal="a"),), {}),
    ("a call", chat(**ANY), (delta(tool_calls=[{"index": 0, "id": "a", "function": {"name": "f"}}]),), {}),
    ("parts", chat(**ANY), (delta([{"type": "text", "text": "a"}]),), {}),  # type: ignore[arg-type]
    ("nothing left", LIMITED, (delta("a"),), {}),
    ("a schema", chat(**ANY, response_format={"type": "json_object"}), (delta("{"),), {}),
    ("a grammar", chat(**ANY, guided_regex="a*"), (delta("a"),), {}),
    ("token ids", completion(**ANY, prompt=[1, 2]), (text("a"),), {}),
    ("half an echo", completion(**ANY, echo=True), (text("h"),), {}),
    ("a message of parts", chat(**ANY, messages=LISTED), (delta("a"),), {"chat_continues": "trailing"}),
]


@pytest.mark.parametrize(("request_", "events", "more"), [row[1:] for row in CANNOT], ids=[row[0] for row in CANNOT])
def test_what_cannot_be_gone_on_with_fails(request_: Request, events: tuple[bytes, ...], more: dict[str, Any]) -> None:
    play = continued(request_, **more)
    play.breaks_off(0, *events)
    assert play.finish == FailureKind.CUT and "error" in play.frames[-1] and play.resumed == ["continue impossible"]


def test_text_in_any_form_is_free() -> None:
    play = continued(chat(stream=True, response_format={"type": "text"}))
    play.breaks_off(0, delta("a"))
    assert "retry:0" in play.timers


@pytest.mark.parametrize(("retries", "budget"), [(0, True), (1, False)])
def test_only_within_the_budget(retries: int, budget: bool) -> None:
    play = continued(chat(stream=True), retries=retries, budget=lambda: budget)
    play.breaks_off(0, delta("a"))
    assert play.over and play.resumed == ["continue spent"]


def test_a_server_that_refuses() -> None:
    play = continued(chat(stream=True), retries=3)
    play.breaks_off(0, delta("a"))
    play.fires("retry:0")
    play.fails(0, status(400))
    assert play.over and play.resumed == ["continue failed"]


def test_a_second_cut_goes_on_from_both() -> None:
    play = continued(chat(stream=True, max_tokens=99, stream_options={"include_usage": True}), retries=3)
    play.breaks_off(0, ROLE, delta("a\n"), delta('"b'))
    play.fires("retry:0")
    play.breaks_off(0, ROLE, delta("😀"))
    play.fires("retry:0")
    body = sent(play)
    assert body["messages"][-1]["content"] == 'a\n"b😀' and body["max_tokens"] == 96
    play.streams(0, delta("d"), STOP, usage_chunk(10, 1))
    assert contents(play.frames) == {0: 'a\n"b😀d'} and play.resumed == ["continue failed", "continue ok"]
    assert play.frames[-2]["usage"] == usage(7, 4), "3 pieces had come"


def test_a_cut_before_anything_new_goes_on_from_the_same() -> None:
    play = continued(chat(stream=True), retries=3)
    play.breaks_off(0, ROLE, delta("a"))
    play.fires("retry:0")
    play.breaks_off(0, ROLE)
    play.fires("retry:0")
    assert sent(play)["messages"][-1]["content"] == "a"
    play.streams(0, delta("b"), STOP)
    assert contents(play.frames) == {0: "ab"}


def test_long_texts_that_nobody_parsed_are_kept_too() -> None:
    pieces = [f'{place}\n"é😀' for place in range(100)]
    play = continued(chat(stream=True, max_tokens=200))
    play.breaks_off(0, ROLE, *map(delta, pieces))
    play.fires("retry:0")
    assert sent(play)["messages"][-1]["content"] == "".join(pieces) and sent(play)["max_tokens"] == 100


# ---- usage: as one call would have told it


def test_usage_where_a_sibling_tells_the_prompt() -> None:
    play = continued(chat(n=2, stream=True, stream_options={"include_usage": True}))
    play.breaks_off(0, ROLE, delta("ab"), delta("c"))  # of five tokens
    play.streams(1, delta("x"), STOP, usage_chunk(7, 1))
    play.fires("retry:0")
    play.streams(0, delta("d"), STOP, usage_chunk(12, 2, prompt_tokens_details={"cached_tokens": 11}))
    assert play.frames[-2]["usage"] == usage(7, 8, prompt_tokens_details={"cached_tokens": 7})
    (spent,) = play.of(Spent)
    assert (spent.upstream_prompt, spent.upstream_completion) == (19, 3 + 2), "of a cut call, the pieces count"


def test_usage_where_the_first_call_told_it_all_the_time() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    play = continued(chat(stream=True, max_tokens=9, stream_options=options))
    play.breaks_off(0, delta("abc", top={"usage": usage(7, 3)}))
    play.fires("retry:0")
    assert sent(play)["max_tokens"] == 6
    play.streams(0, delta("d", top={"usage": usage(11, 1)}), STOP, usage_chunk(11, 2))
    told = [frame["usage"] for frame in play.frames[:-1] if frame.get("usage")]
    assert told[-1] == usage(7, 6) and [one["completion_tokens"] for one in told] == [3, 5, 6]


def test_tokens_of_both_calls_where_they_are_told_all_the_time() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    play = continued(chat(stream=True, max_tokens=20, stream_options=options), retries=2)
    play.breaks_off(0, delta("abc", top={"usage": usage(7, 3)}))
    play.fires("retry:0")
    play.breaks_off(0, delta("de", top={"usage": usage(10, 2)}))
    play.fires("retry:0")
    assert sent(play)["max_tokens"] == 15
    play.streams(0, delta("f", top={"usage": usage(12, 1)}), STOP, usage_chunk(12, 1))
    told = [frame["usage"] for frame in play.frames[:-1] if frame.get("usage")]
    assert told == [usage(7, 3), usage(7, 5), usage(7, 6), usage(7, 6)]
