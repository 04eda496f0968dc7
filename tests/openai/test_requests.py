"""Validation of generation requests, row by row."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nproxy.openai.body import Body
from nproxy.openai.dialect import Dialect
from nproxy.openai.errors import ApiError
from nproxy.openai.jsonvalue import JSON
from nproxy.openai.requests import ChatRequest, CompletionRequest, Limits, parse_chat, parse_completion
from tests.transcripts.recorded import load, names

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT: dict[str, Any] = {"model": "m", "prompt": "hi"}


def chat(limits: Limits = Limits(), **fields: Any) -> ChatRequest:  # noqa: B008 - frozen
    return parse_chat(Body.parse(json.dumps(CHAT | fields).encode()), limits)


def completion(limits: Limits = Limits(), **fields: Any) -> CompletionRequest:  # noqa: B008 - frozen
    return parse_completion(Body.parse(json.dumps(TEXT | fields).encode()), limits)


def refused(parse: Any, param: str, code: str | None = None, *words: str, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(**fields)
    error = caught.value
    assert (error.status, error.type, error.param) == (400, "invalid_request_error", param)
    if code is not None:
        assert error.code == code
    for word in words:
        assert word in error.message
    return error


both = pytest.mark.parametrize("parse", [chat, completion])


@both
def test_A1_n_absent_or_null(parse: Any) -> None:
    assert parse().n == 1
    assert parse(n=None).n == 1


@both
def test_A2_n_one(parse: Any) -> None:
    assert parse(n=1).n == 1


@both
def test_A3_n_zero(parse: Any) -> None:
    refused(parse, "n", "integer_below_min_value", ">= 1", "got 0", n=0)


@both
def test_A4_n_out_of_range(parse: Any) -> None:
    refused(parse, "n", "integer_below_min_value", ">= 1", "got -1", n=-1)
    refused(parse, "n", "integer_above_max_value", "<= 128", "got 129", n=129)
    huge = refused(parse, "n", "integer_above_max_value", "<= 128", n=10**3000)
    assert len(huge.message) < 200
    assert parse(n=128).n == 128


@both
def test_A5_n_true(parse: Any) -> None:
    refused(parse, "n", "invalid_type", "an integer", "a boolean", n=True)
    refused(parse, "n", "invalid_type", n=False)


@both
@pytest.mark.parametrize(("n", "kind"), [(2.0, "a decimal"), ("2", "a string"), ([2], "an array"), ({}, "an object")])
def test_A6_n_of_another_type(parse: Any, n: Any, kind: str) -> None:
    refused(parse, "n", "invalid_type", "an integer", kind, n=n)


@both
def test_A7_configured_max_n(parse: Any) -> None:
    refused(parse, "n", "integer_above_max_value", "<= 8", "got 9", limits=Limits(max_n=8), n=9)
    assert parse(limits=Limits(max_n=8), n=8).n == 8


def test_A8_prompts_times_n() -> None:
    prompts = ["a"] * 5
    refused(completion, "n", "integer_above_max_value", "512", "515", prompt=prompts, n=103)
    request = completion(prompt=prompts, n=102)
    assert (request.choices, request.prompts) == (510, 5)
    refused(completion, "n", "integer_above_max_value", prompt=["a"] * 513)
    refused(chat, "n", "integer_above_max_value", limits=Limits(max_n=8, max_choices=4), n=5)
    assert chat(limits=Limits(max_n=8, max_choices=4), n=4).choices == 4, "a chat is one prompt"
    assert completion(prompt=["a"] * 4, n=128).choices == 512


@pytest.mark.parametrize("fields", [{"modalities": ["text", "audio"]}, {"audio": {"voice": "a"}}])
def test_A9_audio_output(fields: dict[str, Any]) -> None:
    refused(chat, "n", None, "udio", n=2, **fields)
    assert chat(n=1, **fields).n == 1
    assert chat(n=2, modalities=["text"], audio=None).n == 2


def test_A10_prediction() -> None:
    prediction = {"type": "content", "content": "x"}
    refused(chat, "n", None, "prediction", n=2, prediction=prediction)
    assert chat(prediction=prediction).n == 1
    assert chat(prediction=None, n=2).n == 2


@both
@pytest.mark.parametrize("name", ["session_id", "id_slot", "slot_id"])
def test_A11_state_of_the_upstream(parse: Any, name: str) -> None:
    refused(parse, name, None, name, n=2, **{name: 0})
    refused(parse, name, None, name, n=1, best_of=2, **{name: "a"})
    assert parse(n=1, **{name: 0}).n == 1
    assert parse(n=2, **{name: None}).n == 2
    assert parse(n=2, **{name: -1}).n == 2  # any slot


@both
def test_A16_best_of(parse: Any) -> None:
    refused(parse, "best_of", "integer_above_max_value", "<= 20", "got 21", best_of=21)
    refused(parse, "best_of", None, "2", "3", best_of=2, n=3)
    refused(parse, "best_of", None, best_of=3, n=2, stream=True)
    refused(parse, "best_of", "integer_below_min_value", ">= 1", "got 0", best_of=0)
    refused(parse, "best_of", "invalid_type", best_of=2.0)
    refused(parse, "best_of", "integer_above_max_value", "<= 8", limits=Limits(max_n=8), best_of=9)
    assert parse(best_of=20, n=3).drawn == 20
    assert parse(best_of=3, n=3, stream=True).drawn == 3
    assert parse(best_of=None, n=2).drawn == 2
    refused(completion, "best_of", "integer_above_max_value", prompt=["a"] * 40, best_of=20)
    assert completion(prompt=["a"] * 32, best_of=16).drawn == 16


@both
def test_A17_n_cmpl_is_n(parse: Any) -> None:
    assert parse(n_cmpl=3).n == 3
    assert parse(n_cmpl=3, n=3).n == 3
    assert parse(n_cmpl=None, n=3).n == 3
    assert parse(n_cmpl=3, n=None).n == 3
    refused(parse, "n", None, "n_cmpl", n_cmpl=3, n=2)
    refused(parse, "n_cmpl", "integer_below_min_value", n_cmpl=0)
    refused(parse, "n", "integer_below_min_value", n=0, n_cmpl=0)
    refused(parse, "n_cmpl", "invalid_type", n_cmpl="3")
    refused(parse, "n_cmpl", "unsupported_value", n_cmpl=2, audio={"voice": "a"})
    refused(parse, "n_cmpl", "unsupported_value", n_cmpl=2, prediction={})


@both
def test_A18_beam_search_is_seen(parse: Any) -> None:
    assert parse(use_beam_search=True).beam_search
    assert not parse(use_beam_search=None).beam_search
    refused(parse, "use_beam_search", "invalid_type", use_beam_search=1)


@both
def test_A14_greedy_is_seen(parse: Any) -> None:
    assert parse(temperature=0).greedy
    assert parse(temperature=0.0).greedy
    assert not parse(temperature=0.1).greedy
    assert not parse().greedy
    assert not parse(temperature=None).greedy


@both
@pytest.mark.parametrize("seed", [2**63 - 1, -(2**63), -1, 0, None])
def test_B4_seeds_of_64_bits(parse: Any, seed: int | None) -> None:
    assert parse(seed=seed).seed == seed


@both
def test_B4_seeds_beyond_64_bits(parse: Any) -> None:
    refused(parse, "seed", "integer_above_max_value", str(2**63), seed=2**63)
    refused(parse, "seed", "integer_below_min_value", seed=-(2**63) - 1)
    refused(parse, "seed", "integer_above_max_value", seed=10**4000)
    refused(parse, "seed", "invalid_type", seed=1.0)
    refused(parse, "seed", "invalid_type", seed=True)


@both
def test_stop_of_another_type(parse: Any) -> None:
    wrong: list[JSON] = [5, {}]
    for stop in wrong:
        refused(parse, "stop", "invalid_type", "a string or an array of strings", stop=stop)
    refused(parse, "stop.1", "invalid_type", "a string", stop=["a", None])
    for taken in (None, "a", [], ["a", "b"]):
        assert parse(stop=taken).body.fields["stop"] == taken


@both
def test_E7_stream_options(parse: Any) -> None:
    request = parse(stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True, "other": 1})
    assert (request.stream, request.include_usage, request.continuous_usage) == (True, True, True)
    request = parse(stream=True, stream_options={"include_usage": None})
    assert (request.stream, request.include_usage, request.continuous_usage) == (True, False, False)
    for stream in (True, False, None):
        assert not parse(stream=stream, stream_options=None).include_usage
    request = parse(stream=True, stream_options={"include_usage": True})
    assert (request.include_usage, request.continuous_usage) == (True, False)
    refused(parse, "stream_options", "invalid_type", "an object", stream=True, stream_options=[])
    refused(parse, "stream_options.include_usage", "invalid_type", stream=True, stream_options={"include_usage": 1})
    refused(parse, "stream_options", None, stream_options={"include_usage": True})


def test_F6_top_logprobs_without_logprobs() -> None:
    refused(chat, "top_logprobs", None, top_logprobs=2)
    refused(chat, "top_logprobs", None, top_logprobs=2, logprobs=False)
    refused(chat, "top_logprobs", "invalid_type", top_logprobs="2", logprobs=True)
    assert chat(top_logprobs=2, logprobs=True).logprobs_asked
    assert not chat(top_logprobs=None, logprobs=False).logprobs_asked


def test_F3_legacy_logprobs_are_a_number_and_zero_asks() -> None:
    assert completion(logprobs=0).logprobs_asked
    assert not completion(logprobs=None).logprobs_asked
    refused(completion, "logprobs", "invalid_type", logprobs=True)
    refused(chat, "logprobs", "invalid_type", logprobs=1)


@pytest.mark.parametrize(
    ("prompt", "prompts", "listed"),
    [
        ("x", ("x",), False),
        ("", ("",), False),
        (["a", "b"], ("a", "b"), True),
        ([""], ("",), True),
        ([1, 2, 3], ([1, 2, 3],), False),
        ([0], ([0],), False),
        ([[1, 2], [3]], ([1, 2], [3]), True),
    ],
)
def test_J3_prompt_shapes(prompt: Any, prompts: tuple[Any, ...], listed: bool) -> None:
    request = completion(prompt=prompt, n=2)
    assert (request.prompt, request.prompts, request.listed) == (prompts, len(prompts), listed)
    assert request.choices == 2 * len(prompts)


@pytest.mark.parametrize(
    "prompt",
    [
        ["a", 1],
        [1, "a"],
        [[1], "a"],
        [[1], 2],
        [True],
        [1, True],
        [[1, "a"]],
        [1.0],
        [None],
        [[[1]]],
        {"a": 1},
        1,
        True,
    ],
)
def test_J3_mixed_prompts(prompt: Any) -> None:
    refused(completion, "prompt", "invalid_type", prompt=prompt)


def test_J5_empty_prompts() -> None:
    refused(completion, "prompt", "empty_array", prompt=[])
    refused(completion, "prompt", "empty_array", prompt=[[]])
    refused(completion, "prompt", "missing_required_parameter", prompt=None)
    refused(completion, "prompt", "integer_below_min_value", ">= 0", "got -1", prompt=[1, -1])


def test_J6_echo_is_seen() -> None:
    assert completion(echo=True).echo
    assert not completion(echo=None).echo
    refused(completion, "echo", "invalid_type", echo="yes")


@both
@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("model", 1, "invalid_type"),
        ("model", "", "empty_string"),
        ("model", "m" * 4097, "string_above_max_length"),
        ("stream", "true", "invalid_type"),
        ("stream", 1, "invalid_type"),
        ("temperature", "0", "invalid_type"),
        ("temperature", True, "invalid_type"),
        ("temperature", [], "invalid_type"),
    ],
)
def test_types_of_known_fields(parse: Any, field: str, value: Any, code: str) -> None:
    refused(parse, field, code, f"'{field}'", **{field: value})


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ("hi", "messages"),
        ({}, "messages"),
        (["hi"], "messages.0"),
        ([{}, 1], "messages.1"),
    ],
)
def test_messages(messages: Any, param: str) -> None:
    refused(chat, param, None, messages=messages)


@pytest.mark.parametrize(("parse", "fields"), [(parse_chat, CHAT), (parse_completion, TEXT)])
def test_required_fields(parse: Any, fields: dict[str, Any]) -> None:
    for missing in fields:
        rest = {key: value for key, value in fields.items() if key != missing}
        with pytest.raises(ApiError) as caught:
            parse(Body.parse(json.dumps(rest).encode()), Limits())
        assert (caught.value.param, caught.value.code) == (missing, "missing_required_parameter")


@both
def test_a_temperature_that_no_float_can_hold(parse: Any) -> None:
    refused(parse, "temperature", "invalid_value", "too large", temperature=10**400)


@both
def test_unknown_fields_stay_opaque(parse: Any) -> None:
    request = parse(top_k=5, chat_template_kwargs={"a": [1]}, logit_bias={"1": 10**30}, n=2)
    assert request.body.fields["chat_template_kwargs"] == {"a": [1]}
    assert b'"logit_bias": {"1": 1' + b"0" * 30 in bytes(request.body.splice({"seed": 1}, ["n"]))


def test_dialects() -> None:
    assert chat().dialect is Dialect.CHAT
    assert completion().dialect is Dialect.COMPLETIONS


@pytest.mark.parametrize("name", names("vllm"))
def test_recorded_requests(name: str) -> None:
    """nproxy refuses the recorded requests that have a bad n, and no other."""
    request = load("vllm", name)
    parse = parse_chat if request.path.endswith("chat/completions") else parse_completion
    body = Body.parse(request.request)
    bad = name.startswith("bad_n") and name not in {"bad_n_33", "bad_n_65", "bad_n_None"}
    if bad and body.fields["n"] != 2:
        with pytest.raises(ApiError) as caught:
            parse(body, Limits())
        assert caught.value.param == "n"
    else:
        assert parse(body, Limits()).n == (body.fields.get("n") or 1)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)
known = [
    "model", "n", "n_cmpl", "best_of", "seed", "stream", "stream_options", "temperature", "logprobs", "top_logprobs",
    "use_beam_search", "messages", "prompt", "echo", "modalities", "audio", "prediction", "id_slot",
]  # fmt: skip


@settings(derandomize=True, deadline=None, max_examples=300)
@given(st.dictionaries(st.sampled_from(known), anything, max_size=4), st.booleans())
def test_any_value_anywhere_is_accepted_or_refused_by_name(fields: dict[str, Any], as_chat: bool) -> None:
    parse = chat if as_chat else completion
    try:
        request = parse(**fields)
    except ApiError as error:
        assert error.status == 400
        assert error.param is not None
        assert error.param.split(".")[0] in known
        assert b'"param":"' in error.envelope()
    else:
        assert 1 <= request.n <= 128
        assert request.choices <= 512


@pytest.mark.parametrize(("parse", "fields"), [(parse_chat, CHAT), (parse_completion, TEXT)])
@pytest.mark.parametrize("named", [{"model": None}, {}], ids=["null", "absent"])
def test_Q1_a_request_without_a_model_means_the_default_if_there_is_one(
    parse: Any, fields: dict[str, Any], named: dict[str, None]
) -> None:
    unnamed = {key: value for key, value in fields.items() if key != "model"} | named
    body = Body.parse(json.dumps(unnamed).encode())
    assert parse(body, Limits(), "default").model == "default"
    refused(lambda: parse(body, Limits()), "model", "missing_required_parameter")
    assert parse(Body.parse(json.dumps(fields).encode()), Limits(), "default").model == "m"
