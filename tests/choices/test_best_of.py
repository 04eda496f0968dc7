"""J9, J12, E10: the best of several, chosen by their mean log probability."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nproxy.choices.best_of import mean_logprob
from nproxy.choices.capability import Capability
from nproxy.choices.commands import CancelLeg, ChoiceFinished, Learn, Spent
from nproxy.choices.events import FailureKind, LegBody, LegEnded
from nproxy.choices.lessons import Lacks, NativeWidth, Scores
from nproxy.choices.plan import Way
from nproxy.openai.dialect import Dialect
from tests.choices.conduct_player import (
    EXACT,
    FANOUT,
    NATIVE,
    UNTESTED,
    Play,
    body_of,
    chat,
    completion,
    dialect_request,
)
from tests.choices.upstream_says import DONE, delta, status, text, usage, usage_chunk

Said = tuple[str, list[float]]


def scores(dialect: Dialect, values: list[float]) -> dict[str, Any]:
    if dialect is Dialect.CHAT:
        return {"content": [{"token": "t", "logprob": value, "bytes": None, "top_logprobs": []} for value in values]}
    return {"tokens": ["t"] * len(values), "token_logprobs": values, "top_logprobs": None, "text_offset": []}


def body(dialect: Dialect, *said: Said | str, prompt: int = 10, tokens: int | None = None) -> bytes:
    """A whole answer: texts with the log probabilities of their tokens, or without any."""
    choices = []
    for index, one in enumerate(said):
        content, values = one if isinstance(one, tuple) else (one, None)
        held = {"message": {"role": "assistant", "content": content}} if dialect is Dialect.CHAT else {"text": content}
        logprobs = None if values is None else scores(dialect, values)
        choices.append({"index": index, **held, "logprobs": logprobs, "finish_reason": "stop"})
    counted = {} if tokens is None else {"usage": usage(prompt, tokens)}
    return json.dumps({"id": "u", "choices": choices, **counted}).encode()


def shown(play: Play) -> list[str]:
    assert [choice["index"] for choice in play.reply["choices"]] == list(range(play.request.choices))
    return [c["message"]["content"] if "message" in c else c["text"] for c in play.reply["choices"]]


def sent(play: Play, number: int = 0) -> Any:
    return body_of(play, play.opened[number])


BOTH = pytest.mark.parametrize("dialect", Dialect)


@BOTH
@pytest.mark.parametrize("logprobs", [True, False], ids=["logprobs asked for", "not asked for"])
@pytest.mark.parametrize("tokens", [1, 1000])
def test_J9_of_long_answers_too(dialect: Dialect, logprobs: bool, tokens: int) -> None:
    """A long one is scored, and then written while others are awaited."""
    asked: dict[str, Any] = {"logprobs": True if dialect is Dialect.CHAT else 0} if logprobs else {}
    play = Play(dialect_request(dialect, n=2, best_of=3, **asked))
    for leg, value in ((2, -0.5), (0, -2.0), (1, -1.0)):
        play.answers(leg, body(dialect, (f"c{leg}", [value] * tokens)))
    assert shown(play) == ["c2", "c1"]
    assert [choice["logprobs"] is not None for choice in play.reply["choices"]] == [logprobs] * 2


@BOTH
def test_J9_three_legs_and_the_likeliest_wins(dialect: Dialect) -> None:
    play = Play(dialect_request(dialect, best_of=3, seed=7))
    for number in range(3):
        asked = sent(play, number)
        assert asked["logprobs"] == (True if dialect is Dialect.CHAT else 1) and asked["seed"] == 7 + number
        assert not {"n", "best_of"} & asked.keys()
    play.answers(2, body(dialect, ("long", [-1.0] * 9), tokens=9))
    play.answers(0, body(dialect, ("short", [-3.0]), tokens=1))
    play.answers(1, body(dialect, ("best", [-0.5, -0.25]), tokens=2))
    assert shown(play) == ["best"], "the mean decides, not the sum"
    assert play.reply["choices"][0]["logprobs"] is None, "nobody asked for them"
    assert play.way == Way("fanout", 3)


def test_J12_choices_with_log_probabilities_say_that_there_are_some() -> None:
    play = Play(chat(best_of=2))
    for number in range(2):
        play.answers(number, body(Dialect.CHAT, ("c", [-1.0])))
    assert play.of(Learn) == [Learn(Scores())]


def test_J12_one_request_is_one_witness() -> None:
    play = Play(chat(best_of=3))
    whole = body(Dialect.CHAT, "a")
    play.gets(*(event for leg in range(3) for event in (LegBody(leg, whole), LegEnded(leg))))
    assert play.respond.status == 400 and play.of(Learn) == [Learn(Lacks("logprobs"))]


@BOTH
def test_E10_usage_counts_every_choice(dialect: Dialect) -> None:
    play = Play(dialect_request(dialect, n=2, best_of=4))
    for number in range(4):
        play.answers(number, body(dialect, (f"c{number}", [-float(number)]), tokens=number + 1))
    assert play.reply["usage"] == usage(10, 10)
    assert play.of(Spent) == [Spent(10, 10, 40, 10)]
    assert [finished.index for finished in play.of(ChoiceFinished)] == [0, 1], "of those that are shown"


@BOTH
@pytest.mark.parametrize("capability", [NATIVE, EXACT], ids=["native", "exact"])
def test_J9_one_call_where_n_is_native(dialect: Dialect, capability: Capability) -> None:
    play = Play(dialect_request(dialect, n=2, best_of=3), capability)
    assert sent(play)["n"] == 3 and "best_of" not in sent(play)
    play.answers(0, body(dialect, ("c", [-3.0]), ("b", [-2.0]), ("a", [-1.0]), tokens=3))
    assert shown(play) == ["a", "b"], "the best first"
    assert play.way.mode == "native"


def test_J9_of_equals_the_earlier() -> None:
    play = Play(chat(n=2, best_of=4))
    for number in (3, 1, 0, 2):
        play.answers(number, body(Dialect.CHAT, (f"c{number}", [-1.0, -1.0])))
    assert shown(play) == ["c0", "c1"]


@BOTH
def test_J9_logprobs_that_the_client_asked_for_stay(dialect: Dialect) -> None:
    asked: Any = True if dialect is Dialect.CHAT else 2
    play = Play(dialect_request(dialect, best_of=2, logprobs=asked))
    assert sent(play)["logprobs"] == asked
    play.answers(0, body(dialect, ("a", [-2.0])))
    play.answers(1, body(dialect, ("b", [-1.0])))
    assert play.reply["choices"][0]["logprobs"] == scores(dialect, [-1.0])


def test_J9_prompt_lists_choose_within_each_prompt() -> None:
    play = Play(completion(prompt=["p", "q"], n=2, best_of=3), NATIVE)
    values = [-3.0, -1.0, -2.0, -0.1, -0.3, -0.2]
    play.answers(0, body(Dialect.COMPLETIONS, *((f"c{i}", [value]) for i, value in enumerate(values)), tokens=6))
    assert shown(play) == ["c1", "c2", "c3", "c5"]


def test_J9_prompt_lists_fanned_out() -> None:
    play = Play(completion(prompt=["p", "q"], best_of=2))
    play.answers(0, body(Dialect.COMPLETIONS, ("p0", [-1.0]), ("q0", [-2.0])))
    play.answers(1, body(Dialect.COMPLETIONS, ("p1", [-2.0]), ("q1", [-1.0])))
    assert shown(play) == ["p0", "q1"]


@BOTH
def test_J9_C7_what_is_missing_is_fetched_before_the_choice(dialect: Dialect) -> None:
    play = Play(dialect_request(dialect, best_of=3), UNTESTED)
    play.answers(0, body(dialect, ("a", [-2.0])))
    assert [opened.leg.width for opened in play.opened] == [3, 1, 1]
    assert Learn(NativeWidth(3, 1)) in play.everything
    assert sent(play, 1)["logprobs"] in (True, 1), "those are asked for log probabilities too"
    play.answers(1, body(dialect, ("b", [-1.0])))
    play.answers(2, body(dialect, ("c", [-3.0])))
    assert shown(play) == ["b"]


@BOTH
def test_J9_folded_from_streams(dialect: Dialect) -> None:
    say: Any = delta if dialect is Dialect.CHAT else text
    play = Play(dialect_request(dialect, best_of=2), Capability(None, json_usage=False))
    assert sent(play)["stream"] is True
    events = []
    for index, value in enumerate((-2.0, -1.0)):
        events += [say(f"{index}{word}", index=index, logprobs=scores(dialect, [value])) for word in "ab"]
        events.append(say("", index=index, finish="stop"))
    play.streams(0, *events, usage_chunk(10, 4), DONE)
    assert shown(play) == ["1a1b"] and play.reply["usage"] == usage(10, 4)


def test_an_empty_choice_is_never_the_best() -> None:
    play = Play(chat(best_of=2))
    play.answers(0, body(Dialect.CHAT, ("", [])))
    play.answers(1, body(Dialect.CHAT, ("b", [-99.0])))
    assert shown(play) == ["b"]


@BOTH
@pytest.mark.parametrize("capability", [FANOUT, NATIVE], ids=["fanout", "native"])
def test_J12_answers_without_log_probabilities(dialect: Dialect, capability: Capability) -> None:
    play = Play(dialect_request(dialect, best_of=2), capability, retries=1)
    play.answers(0, body(dialect, *(["a"] if capability is FANOUT else ["a", "b"])))
    assert (play.respond.status, play.reply["error"]["param"]) == (400, "best_of")
    assert play.reply["error"]["type"] == "invalid_request_error"
    assert play.of(Learn)[-1] == Learn(Lacks("logprobs"))
    assert [command.leg for command in play.of(CancelLeg)] == ([1] if capability is FANOUT else [])


def test_J9_a_cut_after_the_last_finish_is_no_failure() -> None:
    play = Play(chat(best_of=2), NATIVE)
    play.says(0, delta("a", logprobs=scores(Dialect.CHAT, [-2.0]), finish="stop"))
    play.says(0, delta("b", logprobs=scores(Dialect.CHAT, [-1.0]), index=1, finish="stop"))
    play.fails(0, FailureKind.CUT)
    assert shown(play) == ["b"]


def test_J12_is_not_learned_from_what_the_client_asked() -> None:
    play = Play(completion(best_of=2, logprobs=0))
    play.answers(0, body(Dialect.COMPLETIONS, "a"))
    assert play.respond.status == 400 and play.of(Learn) == []


REFUSALS = [
    b'{"error":{"message":"logprobs is not supported","param":"logprobs"}}',
    b'{"error":{"message":"This model does not give log probs"}}',
]


@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("capability", [FANOUT, NATIVE, EXACT], ids=["fanout", "native", "exact"])
def test_J12_a_server_that_refuses_log_probabilities(refusal: bytes, capability: Capability) -> None:
    play = Play(chat(n=1, best_of=2), capability)
    play.fails(0, status(400, refusal))
    assert (play.respond.status, play.reply["error"]["param"]) == (400, "best_of")
    assert play.of(Learn) == [], "a refusal may quote what a client wrote"


def test_F2_a_client_that_asked_for_them_reads_the_refusal_itself() -> None:
    play = Play(chat(best_of=2, logprobs=True))
    play.fails(0, status(400, REFUSALS[0]))
    assert play.reply["error"]["param"] == "logprobs"


def test_J12_other_refusals_are_what_they_are() -> None:
    play = Play(chat(best_of=2))
    play.fails(0, status(400, b'{"error":{"message":"too hot","param":"temperature"}}'))
    assert play.reply["error"]["param"] == "temperature"


def test_K3_the_best_of_fewer_is_not_the_best() -> None:
    play = Play(chat(best_of=2), partial=True)
    play.answers(0, body(Dialect.CHAT, ("a", [-1.0])))
    play.fails(1, status(500))
    assert play.respond.status == 500
    early = Play(chat(best_of=2), partial=True)
    early.fails(0, status(404))
    assert early.over, "nobody waits for the others"


def test_A14_the_best_of_equals_is_computed_once_and_counted_as_asked() -> None:
    play = Play(chat(n=2, best_of=5, temperature=0), greedy="dedupe")
    assert "logprobs" not in sent(play) and len(play.opened) == 1
    play.answers(0, body(Dialect.CHAT, "same", tokens=3))
    assert shown(play) == ["same", "same"]
    assert play.reply["usage"] == usage(10, 15)
    assert play.of(Spent) == [Spent(10, 15, 10, 3, prompt_saved=40)]


def test_B6_seeds_of_our_own_may_be_left_out_at_one_choice_too() -> None:
    play = Play(chat(best_of=2))
    play.fails(0, status(400, b'{"error":{"message":"no seed here","param":"seed"}}'))
    assert play.opened[-1].leg.omit == {"seed"}


@pytest.mark.parametrize(
    ("logprobs", "echoed", "mean"),
    [
        ({"content": [{"logprob": -1}, {"logprob": -2.0}]}, None, -1.5),
        ({"content": None, "refusal": [{"logprob": -4}]}, None, -4.0),
        ({"token_logprobs": [None, -9.0, -1.0, -3.0], "text_offset": [0, 2, 5, 6]}, "hello", -2.0),
        ({"token_logprobs": [None, -9.0, -1.0, -3.0], "text_offset": [7, 9, 12, 13]}, "hello", -2.0),
        ({"token_logprobs": [None, -9.0, -1.0, -3.0]}, [4, 5], -2.0),
        ({"token_logprobs": [-1.0, -3.0], "text_offset": [0, 1]}, "hello", -2.0),  # it did not echo
        ({"token_logprobs": [None, -1.0, -3.0]}, "hello", -2.0),  # unknown where the prompt ends
        ({"token_logprobs": [None, -1.0, -3.0], "text_offset": None}, "hello", -2.0),
        ({"token_logprobs": [None, -1.0, -3.0], "text_offset": [0, 5]}, "hello", -2.0),
        ({"token_logprobs": [None, -1.0, -3.0], "text_offset": [0, 2]}, "hello", -2.0),  # of two tokens only
        ({"token_logprobs": [-1.0, -3.0]}, None, -2.0),
        ({"content": []}, None, None),
        ({"token_logprobs": []}, None, None),
        ({}, None, None),
        (None, None, None),
        ({"content": [{"logprob": -(10**400)}]}, None, None),
        ({"token_logprobs": [10**400, -0.5]}, None, None),
    ],
)
def test_the_mean_counts_the_choices_own_tokens(logprobs: Any, echoed: Any, mean: float | None) -> None:
    assert mean_logprob(logprobs, echoed) == mean


def test_J6_the_echoed_prompt_does_not_count() -> None:
    """Its tokens are as likely in every choice; they would favour the shorter one here."""
    play = Play(completion(prompt="hello", echo=True, best_of=2))

    def echoed(said: str, values: list[float]) -> bytes:
        logprobs = {"token_logprobs": [None, -0.1, *values], "text_offset": [0, 2, *range(5, 5 + len(values))]}
        choice = {"index": 0, "text": "hello" + said, "logprobs": logprobs, "finish_reason": "stop"}
        return json.dumps({"choices": [choice]}).encode()

    play.answers(0, echoed("a", [-1.1]))
    play.answers(1, echoed("bcde", [-1.0] * 4))
    assert shown(play) == ["hellobcde"]


@pytest.mark.parametrize("prompt", ["hello", [[4, 5]]], ids=["text", "token ids"])
@pytest.mark.parametrize("asked", [{}, {"logprobs": 0}], ids=["not asked for", "logprobs asked for"])
def test_J12_a_choice_that_is_its_echo_alone_has_nothing_to_score(prompt: Any, asked: dict[str, Any]) -> None:
    """As with `max_tokens: 0`. The server does give log probabilities, so that nothing is learned against it."""
    play = Play(completion(prompt=prompt, echo=True, max_tokens=0, n=1, best_of=2, **asked))
    logprobs = {"tokens": ["he", "llo"], "token_logprobs": [None, -0.1], "text_offset": [0, 2]}
    choice = {"index": 0, "text": "hello", "logprobs": logprobs, "finish_reason": "length"}
    for leg in range(2):
        play.answers(leg, json.dumps({"choices": [choice]}).encode())
    assert shown(play) == ["hello"]
    assert Learn(Lacks("logprobs")) not in play.of(Learn)


def test_requests_that_need_no_choosing_are_as_ever() -> None:
    for request in (chat(n=2, best_of=2), chat(best_of=1), completion(best_of=None)):
        play = Play(request, NATIVE)
        assert "logprobs" not in sent(play)
