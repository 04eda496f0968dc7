"""`choice_params`: what is taken, and what a 400 says of the rest."""

from __future__ import annotations

import json
from typing import Any

import pytest

from nproxy.openai.body import Body
from nproxy.openai.errors import ApiError
from nproxy.openai.requests import ChatRequest, CompletionRequest, Limits, parse_chat, parse_completion

BASE = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "prompt": "hi"}


def chat(**fields: Any) -> ChatRequest:
    return parse_chat(Body.parse(json.dumps({**BASE, **fields}).encode()), Limits())


def completion(**fields: Any) -> CompletionRequest:
    return parse_completion(Body.parse(json.dumps({**BASE, **fields}).encode()), Limits())


BOTH = pytest.mark.parametrize("parse", [chat, completion])
EVERYTHING = {
    "temperature": 0,
    "top_p": 0.5,
    "top_k": -1,
    "min_p": 0,
    "seed": -1,
    "max_tokens": 5,
    "max_completion_tokens": 6,
    "stop": ["a", "b"],
    "presence_penalty": 1.5,
    "frequency_penalty": -2,
    "repetition_penalty": 1,
    "logit_bias": {"50256": -100, "7": 1.5},
    "min_tokens": 3,
    "bad_words": ["no", "never"],
    "allowed_token_ids": [1, 2],
}


@BOTH
def test_what_may_differ_between_choices(parse: Any) -> None:
    request = parse(n=3, choice_params=[EVERYTHING, {}, {"stop": "x"}])
    assert request.choice_params == (EVERYTHING, {}, {"stop": "x"})


@BOTH
def test_absent_and_null_leave_the_requests_own(parse: Any) -> None:
    assert parse(n=2).choice_params is None
    assert parse(n=2, choice_params=None).choice_params is None
    assert parse(n=1, choice_params=[dict.fromkeys(EVERYTHING)]).choice_params == ({},)


@BOTH
@pytest.mark.parametrize(
    ("sent", "param", "code"),
    [
        ({}, "choice_params", "invalid_type"),
        ("x", "choice_params", "invalid_type"),
        ([], "choice_params", "invalid_length"),
        ([{}], "choice_params", "invalid_length"),
        ([{}, {}, {}], "choice_params", "invalid_length"),
        ([{}, None], "choice_params.1", "invalid_type"),
        ([3, {}], "choice_params.0", "invalid_type"),
        ([{}, {"n": 1}], "choice_params.1.n", "unknown_parameter"),
        ([{}, {"messages": []}], "choice_params.1.messages", "unknown_parameter"),
        ([{"temprature": 1}, {}], "choice_params.0.temprature", "unknown_parameter"),
        ([{"temperature": "hot"}, {}], "choice_params.0.temperature", "invalid_type"),
        ([{"temperature": True}, {}], "choice_params.0.temperature", "invalid_type"),
        ([{"top_k": 1.5}, {}], "choice_params.0.top_k", "invalid_type"),
        ([{"seed": True}, {}], "choice_params.0.seed", "invalid_type"),
        ([{"seed": 2**63}, {}], "choice_params.0.seed", "integer_above_max_value"),
        ([{"max_tokens": "5"}, {}], "choice_params.0.max_tokens", "invalid_type"),
        ([{"stop": 5}, {}], "choice_params.0.stop", "invalid_type"),
        ([{"stop": ["a", 5]}, {}], "choice_params.0.stop.1", "invalid_type"),
        ([{"logit_bias": []}, {}], "choice_params.0.logit_bias", "invalid_type"),
        ([{"logit_bias": {"5": "a"}}, {}], "choice_params.0.logit_bias.5", "invalid_type"),
    ],
)
def test_what_is_refused(parse: Any, sent: Any, param: str, code: str) -> None:
    with pytest.raises(ApiError) as refused:
        parse(n=2, choice_params=sent)
    error = refused.value
    assert (error.status, error.type, error.param, error.code) == (400, "invalid_request_error", param, code)


@BOTH
def test_a_misspelled_field_is_told_the_right_one(parse: Any) -> None:
    with pytest.raises(ApiError) as refused:
        parse(n=2, choice_params=[{"temprature": 1}, {}])
    said = "'choice_params.0.temprature'. Did you mean 'choice_params.0.temperature'?"
    assert refused.value.message == f"Unrecognized request argument: {said}"


@BOTH
def test_the_message_names_both_lengths(parse: Any) -> None:
    with pytest.raises(ApiError, match=r"2 entries.* 3"):
        parse(n=3, choice_params=[{}, {}])


@BOTH
def test_best_of_leaves_open_which_choice_is_which(parse: Any) -> None:
    with pytest.raises(ApiError) as refused:
        parse(n=2, best_of=3, choice_params=[{}, {}])
    assert refused.value.param == "choice_params"
    assert parse(n=2, best_of=2, choice_params=[{}, {}]).choice_params == ({}, {})


@BOTH
def test_choices_with_parameters_of_their_own_are_not_all_equal(parse: Any) -> None:
    assert parse(n=2, temperature=0).all_equal
    assert not parse(n=2, temperature=0, choice_params=[{}, {"temperature": 1}]).all_equal
