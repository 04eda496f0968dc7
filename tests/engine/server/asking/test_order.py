"""Requests read, and refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from engine.messages import Sampling
from engine.server.asking.order import Order, read_order
from engine.server.asking.output_options import OutputOptions
from engine.server.groups import manners
from engine.server.preparing.prompts import prepare
from nproxy.openai.errors import ApiError
from tests.engine.server.letters import LETTERS, READY, chat, completion, only


@pytest.mark.parametrize(
    ("fields", "sampling"),
    [
        ({}, Sampling(1.0, 0, 1.0)),
        ({"temperature": None, "top_p": None, "top_k": None}, Sampling(1.0, 0, 1.0)),
        ({"temperature": 0.5, "top_p": 0.9, "top_k": 40}, Sampling(0.5, 40, 0.9)),
        ({"temperature": 2, "top_k": -1}, Sampling(2.0, 0, 1.0)),
        ({"temperature": 0, "top_p": 0.1}, Sampling(0.0, 0, 1.0)),
        ({"temperature": 1e-9}, Sampling(0.0, 0, 1.0)),
        ({"top_p": 0}, Sampling(1.0, 1, 1.0)),
        ({"top_k": 10**15}, Sampling(1.0, 0, 1.0)),
        ({"min_p": 0.05, "top_p": 0.5}, Sampling(top_p=0.5, min_p=0.05)),
        ({"min_p": 0.05, "top_p": 0}, Sampling(top_k=1)),
        (
            {"presence_penalty": 2, "frequency_penalty": -2, "repetition_penalty": 1.1},
            Sampling(presence_penalty=2.0, frequency_penalty=-2.0, repetition_penalty=1.1),
        ),
        ({"temperature": 0, "presence_penalty": 1, "min_p": 1}, Sampling(0.0, presence_penalty=1.0)),
        ({"logit_bias": {"5": -100, "0": 0.5}}, Sampling(logit_bias=((5, -100.0), (0, 0.5)))),
        ({"logit_bias": {}, "bad_words": [], "min_tokens": 0, "repetition_penalty": 1}, Sampling()),
        ({"allowed_token_ids": [7, 3, 7]}, Sampling(allowed_tokens=(3, 7))),
        ({"min_tokens": 3, "max_tokens": 3}, Sampling(min_tokens=3)),
    ],
)
def test_sampling(fields: dict[str, Any], sampling: Sampling) -> None:
    assert chat(**fields).choice_options[0].sampling == sampling
    assert completion(**fields).choice_options[0].sampling == sampling


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_p": -1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"max_tokens": "9"}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": ["a", 1]}, "stop.1"),
        ({"stop": {"a": 1}}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": "x" * 257}, "stop"),
        ({"stop_token_ids": [-1]}, "stop_token_ids.0"),
        ({"stop_token_ids": 3}, "stop_token_ids"),
        ({"stop_token_ids": [True]}, "stop_token_ids.0"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"min_p": 1.1}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": 101}, "repetition_penalty"),
        ({"repetition_penalty": 10**400}, "repetition_penalty"),
        ({"min_p": -(10**400)}, "min_p"),
        ({"repetition_penalty": True}, "repetition_penalty"),  # equal to 1 in Python, and yet not the number
        ({"logit_bias": [5]}, "logit_bias"),
        ({"logit_bias": {"five": 1}}, "logit_bias"),
        ({"logit_bias": {"-5": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 100.5}}, "logit_bias.5"),
        ({"logit_bias": {"5": "1"}}, "logit_bias.5"),
        ({"bad_words": "x"}, "bad_words"),
        ({"bad_words": ["x", ""]}, "bad_words.1"),
        ({"bad_words": [3]}, "bad_words.0"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [1, -1]}, "allowed_token_ids.1"),
        ({"allowed_token_ids": "all"}, "allowed_token_ids"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 1.5}, "min_tokens"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"cache_prompt": False}, "cache_prompt"),
        ({"detokenize": False}, "detokenize"),
        ({"detokenize": 1}, "detokenize"),
        ({"early_stopping": True}, "early_stopping"),
        ({"include_reasoning": False}, "include_reasoning"),
        ({"separate_reasoning": False}, "separate_reasoning"),
        ({"no_stop_trim": True}, "no_stop_trim"),
        ({"no_stop_trim": 0}, "no_stop_trim"),
        ({"return_hidden_states": True}, "return_hidden_states"),
        ({"stream_reasoning": False}, "stream_reasoning"),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": 0, "stream": True}, "prompt_logprobs"),
        ({"return_token_ids": 1}, "return_token_ids"),
        ({"include_stop_str_in_output": "yes"}, "include_stop_str_in_output"),
        ({"skip_special_tokens": 0}, "skip_special_tokens"),
        ({"guided_regex": 5}, "guided_regex"),
        ({"nonsense": 0}, "nonsense"),
        ({"stream": True, "stream_options": {"chunk_size": 4}}, "stream_options"),
    ],
)
def test_refused_by_name_in_both_dialects(fields: dict[str, Any], param: str) -> None:
    for read in (chat, completion):
        with pytest.raises(ApiError) as refused:
            read(**fields)
        assert (refused.value.status, refused.value.param) == (400, param)
        assert refused.value.type == "invalid_request_error"
        assert param.split(".")[0].partition("_")[0] in refused.value.message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": 1}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": ""}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
        ({"verbosity": "low"}, "verbosity"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"moderation": {}}, "moderation"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"chat_template": "{{ 1 }}"}, "chat_template"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": 1}, "chat_template_kwargs"),
        ({"echo": True}, "echo"),
        ({"prompt": "x"}, "prompt"),
        ({"add_special_tokens": True}, "add_special_tokens"),
    ],
)
def test_refused_by_name_in_chat(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        chat(**fields)
    assert (refused.value.status, refused.value.param) == (400, param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": ""}, "top_logprobs"),
        ({"suffix": "the end"}, "suffix"),
        ({"max_completion_tokens": 5}, "max_completion_tokens"),
        ({"max_tokens": 0, "echo": False}, "max_tokens"),
        ({"max_tokens": -1, "echo": True}, "max_tokens"),
        ({"messages": [{}]}, "messages"),
    ],
)
def test_refused_by_name_in_completions(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        completion(**fields)
    assert (refused.value.status, refused.value.param) == (400, param)


@pytest.mark.parametrize(
    ("order", "output_options"),
    [
        (chat(), OutputOptions()),
        (chat(logprobs=False, top_logprobs=0), OutputOptions()),
        (chat(logprobs=True), OutputOptions(logprobs=0)),
        (chat(logprobs=True, top_logprobs=20), OutputOptions(logprobs=20)),
        (completion(logprobs=0), OutputOptions(logprobs=0)),
        (completion(logprobs=5, prompt_logprobs=2), OutputOptions(logprobs=5, prompt_logprobs=2)),
        (chat(return_token_ids=True, return_tokens_as_token_ids=True), OutputOptions(ids=True, as_ids=True)),
        (chat(skip_special_tokens=False, include_stop_str_in_output=True), OutputOptions(special=True, keep_stop=True)),
        (chat(skip_special_tokens=True), OutputOptions()),
    ],
)
def test_what_is_reported_of_tokens(order: Order, output_options: OutputOptions) -> None:
    assert order.output_options == output_options


@pytest.mark.parametrize(
    ("order", "drawn", "prompt"),
    [
        (completion(), None, None),
        (completion(best_of=3), 0, None),
        (completion(best_of=1), None, None),
        (completion(best_of=3, logprobs=2), 2, None),
        (completion(logprobs=2, echo=True), 2, 2),
        (completion(logprobs=2, echo=True, prompt_logprobs=5), 2, 5),
        (completion(prompt_logprobs=0), None, 0),
        (completion(echo=True), None, None),
        (chat(logprobs=True), 0, None),
    ],
)
def test_which_log_probabilities_are_computed(order: Order, drawn: int | None, prompt: int | None) -> None:
    assert (order.drawn_logprobs, order.prompt_logprobs) == (drawn, prompt)


def test_the_operators_limit_of_log_probabilities() -> None:
    with pytest.raises(ApiError) as refused:
        read_order(completion(logprobs=3).request, most_logprobs=2)
    assert (refused.value.param, refused.value.code) == ("logprobs", "integer_above_max_value")


def test_E10_best_of_draws_as_many() -> None:
    assert len(completion(best_of=3, n=2).choice_options) == 3


def test_max_tokens_0_asks_for_the_echo_alone() -> None:
    order = completion(max_tokens=0, echo=True)
    assert (order.choice_options[0].max_tokens, only(order).limits) == (0, (1,))
    ((manner,),) = manners(order, [only(order)], LETTERS.table)
    assert manner.silent


NEUTRAL = {
    "presence_penalty": 0,
    "frequency_penalty": 0.0,
    "logit_bias": {},
    "min_p": 0,
    "repetition_penalty": 1.0,
    "response_format": {"type": "text"},
    "use_beam_search": False,
    "suffix": None,
    "anything": None,
    "user": "u-1",
    "metadata": {"k": "v"},
    "store": False,
    "service_tier": "auto",
    "safety_identifier": "s",
    "prompt_cache_key": "p",
    "cache_prompt": True,
    "detokenize": True,
    "early_stopping": False,
    "include_reasoning": True,
    "separate_reasoning": True,
    "no_stop_trim": False,
    "return_hidden_states": False,
    "stream_reasoning": True,
    "spaces_between_special_tokens": False,
}


def test_what_asks_for_nothing_passes() -> None:
    assert chat(**NEUTRAL, logprobs=False, tools=[], tool_choice="none", n=2).request.n == 2
    assert completion(**NEUTRAL, best_of=2, n=2).request.n == 2
    assert completion(best_of=1).request.n == 1


@pytest.mark.parametrize(
    ("fields", "stops"),
    [({}, ()), ({"stop": None}, ()), ({"stop": []}, ()), ({"stop": "a"}, ("a",)), ({"stop": ["a", "bc"]}, ("a", "bc"))],
)
def test_stop(fields: dict[str, Any], stops: tuple[str, ...]) -> None:
    assert chat(**fields).choice_options[0].stops == stops


def test_stop_tokens_and_ignore_eos() -> None:
    order = chat(stop_token_ids=[3, 3, 5], ignore_eos=True)
    assert (order.stop_tokens, order.ignore_eos) == (frozenset({3, 5}), True)
    with pytest.raises(ApiError, match="vocabulary"):
        prepare(chat(stop_token_ids=[300]), LETTERS, READY)


@pytest.mark.parametrize(("given", "seed"), [(None, None), (7, 7), (-1, None), (-2, -2), (2**63 - 1, 2**63 - 1)])
def test_B5_seed(given: int | None, seed: int | None) -> None:
    assert chat(seed=given).seed == seed
