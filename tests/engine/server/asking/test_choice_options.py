"""`choice_params`: what each choice asks for itself, in place of what the request asks for all."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import tokenizers

from engine.messages import Choice, Sampling
from engine.server.asking import sampling
from engine.server.asking.choice_options import ChoiceOptions
from engine.server.groups import groups
from engine.server.preparing.prompts import prepare
from engine.text.tokenizer import Tokenizer
from nproxy.openai.errors import ApiError
from tests.engine.server.letters import LETTERS, READY, chat, completion


def test_without_them_all_choices_are_alike() -> None:
    without: list[dict[str, Any]] = [{}, {"choice_params": None}, {"choice_params": [{}, {}, {}]}]
    for fields in without:
        assert chat(n=3, temperature=0.5, stop="x", max_tokens=4, **fields).choice_options == (
            (ChoiceOptions(Sampling(0.5), None, 4, ("x",)),) * 3
        )


def test_what_a_choice_names_is_its_own_and_the_rest_is_the_requests() -> None:
    own = [
        {"temperature": 0},
        {"top_p": 0.5, "top_k": 3, "stop": ["a", "b"]},
        {"seed": 7, "max_tokens": 9, "temperature": None},
        {"max_completion_tokens": 2, "stop": []},
    ]
    order = chat(n=4, temperature=0.7, top_p=0.9, stop="x", max_completion_tokens=4, seed=1, choice_params=own)
    assert order.choice_options == (
        ChoiceOptions(Sampling(0.0), None, 4, ("x",)),
        ChoiceOptions(Sampling(0.7, 3, 0.5), None, 4, ("a", "b")),
        ChoiceOptions(Sampling(0.7, 0, 0.9), 7, 9, ("x",)),
        ChoiceOptions(Sampling(0.7, 0, 0.9), None, 2, ()),
    )


def test_every_way_of_drawing_may_differ() -> None:
    own = [
        {"min_p": 0.1, "presence_penalty": 1, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
        {"logit_bias": {"05": 3, "5": 1}, "bad_words": ["x"], "allowed_token_ids": [5], "min_tokens": 2},
        {},
    ]
    order = chat(n=3, presence_penalty=0.3, bad_words=["y"], choice_params=own)
    assert [options.sampling for options in order.choice_options] == [
        Sampling(min_p=0.1, presence_penalty=1.0, frequency_penalty=0.5, repetition_penalty=1.2),
        Sampling(presence_penalty=0.3, logit_bias=((5, 1.0),), allowed_tokens=(5,), min_tokens=2),
        Sampling(presence_penalty=0.3),
    ]
    assert [options.bad_words for options in order.choice_options] == [("y",), ("x",), ("y",)]


def test_each_long_option_is_inherited_by_itself() -> None:
    own = [{"logit_bias": {"6": 2}}, {"allowed_token_ids": [7]}, {"bad_words": ["x"]}, {"stop": "y"}]
    order = chat(n=4, logit_bias={"5": 1}, allowed_token_ids=[5, 6], bad_words=["z"], stop="s", choice_params=own)
    assert [
        (one.sampling.logit_bias, one.sampling.allowed_tokens, one.bad_words, one.stops) for one in order.choice_options
    ] == [
        (((6, 2.0),), (5, 6), ("z",), ("s",)),
        (((5, 1.0),), (7,), ("z",), ("s",)),
        (((5, 1.0),), (5, 6), ("x",), ("s",)),
        (((5, 1.0),), (5, 6), ("z",), ("y",)),
    ]


def test_what_asks_for_nothing_passes() -> None:
    nothing = {
        "min_p": 0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1,
        "logit_bias": {},
        "frequency_penalty": None,
    }
    assert chat(n=2, choice_params=[nothing, {}]).choice_options == chat(n=2).choice_options


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"choice_params": {}}, "choice_params"),
        ({"choice_params": []}, "choice_params"),
        ({"choice_params": [{}]}, "choice_params"),
        ({"choice_params": [{}, {}, {}]}, "choice_params"),
        ({"choice_params": [{}, None]}, "choice_params.1"),
        ({"choice_params": [3, {}]}, "choice_params.0"),
        ({"choice_params": [{}, {"temprature": 1}]}, "choice_params.1.temprature"),
        ({"choice_params": [{}, {"n": None}]}, "choice_params.1.n"),
        ({"choice_params": [{}, {"min_p": 1.1}]}, "choice_params.1.min_p"),
        ({"choice_params": [{"logit_bias": {"5": 101}}, {}]}, "choice_params.0.logit_bias.5"),
        ({"choice_params": [{}, {"bad_words": [""]}]}, "choice_params.1.bad_words.0"),
        ({"choice_params": [{}, {"allowed_token_ids": []}]}, "choice_params.1.allowed_token_ids"),
        ({"choice_params": [{}, {"min_tokens": -1}]}, "choice_params.1.min_tokens"),
        ({"choice_params": [{}, {"ignore_eos": True}]}, "choice_params.1.ignore_eos"),
        ({"choice_params": [{}, {"temperature": "hot"}]}, "choice_params.1.temperature"),
        ({"choice_params": [{"temperature": 2.5}, {}]}, "choice_params.0.temperature"),
        ({"choice_params": [{}, {"top_p": -1}]}, "choice_params.1.top_p"),
        ({"choice_params": [{}, {"top_k": 1.5}]}, "choice_params.1.top_k"),
        ({"choice_params": [{}, {"seed": 2**63}]}, "choice_params.1.seed"),
        ({"choice_params": [{}, {"seed": -(2**63) - 1}]}, "choice_params.1.seed"),
        ({"choice_params": [{}, {"seed": True}]}, "choice_params.1.seed"),
        ({"choice_params": [{}, {"max_tokens": 0}]}, "choice_params.1.max_tokens"),
        ({"choice_params": [{}, {"stop": ["a", 1]}]}, "choice_params.1.stop.1"),
        ({"choice_params": [{}, {"stop": ""}]}, "choice_params.1.stop"),
    ],
)
def test_refused_by_its_place(fields: dict[str, Any], param: str) -> None:
    for read in (chat, completion):
        with pytest.raises(ApiError) as refused:
            read(n=2, **fields)
        assert (refused.value.status, refused.value.param) == (400, param)
        assert refused.value.type == "invalid_request_error"


def test_the_two_names_of_the_limit() -> None:
    with pytest.raises(ApiError, match="differ") as refused:
        chat(choice_params=[{"max_tokens": 3, "max_completion_tokens": 4}])
    assert refused.value.param == "choice_params.0.max_tokens"
    with pytest.raises(ApiError) as refused:
        completion(choice_params=[{"max_completion_tokens": 4}])
    assert refused.value.param == "choice_params.0.max_completion_tokens"


def test_each_choice_has_its_limit_and_the_longest_must_fit() -> None:
    (prompt,) = prepare(chat(n=3, choice_params=[{"max_tokens": 4}, {}, {"max_tokens": 95}]), LETTERS, READY)
    assert prompt.limits == (4, 95, 95)
    (prompt,) = prepare(completion(n=2, choice_params=[{"max_tokens": 40}, {}]), LETTERS, READY)
    assert prompt.limits == (40, 16)
    with pytest.raises(ApiError, match="and 96 new tokens were requested"):
        prepare(chat(n=2, choice_params=[{"max_tokens": 4}, {"max_tokens": 96}]), LETTERS, READY)


def choices(**fields: Any) -> list[tuple[Choice, ...]]:
    order = completion(n=3, max_tokens=5, **fields)
    return [group.choices for group in groups(order, prepare(order, LETTERS, READY), READY, Random(1))]


def test_B7_seeds_count_up_from_the_requests_for_every_prompt() -> None:
    assert [[choice.seed for choice in made] for made in choices(prompt=["a", "b"], seed=5)] == [[5, 6, 7]] * 2


def test_B4_seeds_wrap() -> None:
    (made,) = choices(seed=2**63 - 1)
    assert [choice.seed for choice in made] == [2**63 - 1, -(2**63), -(2**63) + 1]


def test_a_seed_of_its_own_replaces_the_counted_one_for_every_prompt() -> None:
    own: list[dict[str, Any]] = [{}, {"seed": 100}, {}]
    made = choices(prompt=["a", "b"], seed=5, choice_params=own)
    assert [[choice.seed for choice in one] for one in made] == [[5, 100, 7]] * 2


def test_B5_a_seed_of_minus_one_is_random() -> None:
    first, second = choices(prompt=["a", "b"], seed=5, choice_params=[{}, {"seed": -1}, {}])
    assert (first[0].seed, first[2].seed) == (second[0].seed, second[2].seed) == (5, 7)
    assert len({6, -1, first[1].seed, second[1].seed}) == 4


def test_what_is_long_is_read_once_for_all_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    plain = sampling._token

    def noted(key: str, name: str) -> int:
        read.append(key)
        return plain(key, name)

    monkeypatch.setattr(sampling, "_token", noted)
    long = {
        "logit_bias": {str(token): 1 for token in range(200)},
        "allowed_token_ids": [*range(200)],
        "bad_words": [f"word {number}" for number in range(200)],
        "stop": ["x"],
    }
    order = chat(n=32, choice_params=[{"temperature": 0.5 + i / 100} for i in range(32)], **long)
    assert len(read) == 200
    for whole in (order.choice_options, prepare(order, LETTERS, READY)[0].samplings):
        assert len(set(whole)) == 32
    first, *others = order.choice_options
    for other in others:
        assert other.sampling.logit_bias is first.sampling.logit_bias
        assert other.sampling.allowed_tokens is first.sampling.allowed_tokens
        assert other.bad_words is first.bad_words
        assert other.stops is first.stops


def test_bad_words_are_spelled_once_for_all_choices_and_prompts() -> None:
    said: list[str] = []

    class Listening(Tokenizer):
        def encode_chat(self, text: str) -> tuple[int, ...]:
            said.append(text)
            return super().encode_chat(text)

    tokenizer = Listening(LETTERS.backend, LETTERS.table, LETTERS.template, 0)
    own = [{"temperature": 0.1 * i, "bad_words": ["shared", f"w{i % 2}"]} for i in range(8)]
    prompts = prepare(completion(prompt=["a", "b"], n=8, choice_params=own), tokenizer, READY)
    assert sorted(said) == sorted(["shared", " shared", "w0", " w0", "w1", " w1"])
    words = [drawn.bad_words for prompt in prompts for drawn in prompt.samplings]
    assert len({id(one) for one in words}) == 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias"),
        ({"choice_params": [{"logit_bias": {str(token): 1 for token in range(1025)}}]}, "choice_params.0.logit_bias"),
        ({"allowed_token_ids": [0] * ((1 << 20) + 1)}, "allowed_token_ids"),
        ({"bad_words": ["x"] * 1025}, "bad_words"),
        ({"bad_words": ["x", "y" * 257]}, "bad_words.1"),
        ({"n": 2, "choice_params": [{"bad_words": [f"{i} {j}" for j in range(600)]} for i in (0, 1)]}, "choice_params"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": "x" * 257}, "stop"),
    ],
)
def test_lists_have_bounds(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as error:
        chat(**fields)
    assert (error.value.status, error.value.param) == (400, param)


def test_lists_within_their_bounds_pass() -> None:
    words = [f"{number:0256}" for number in range(1024)]
    many = {str(token): 1 for token in range(1024)}
    options = chat(logit_bias=many, bad_words=words, stop=["x" * 256] * 16).choice_options[0]
    assert (len(options.sampling.logit_bias), len(options.bad_words), len(options.stops)) == (1024, 1024, 16)


def test_all_choices_together_may_have_as_many_bad_words_as_one() -> None:
    own = [{"bad_words": [f"{choice} {number}" for number in range(512)]} for choice in (0, 1)]
    assert len(chat(n=2, choice_params=own).choice_options) == 2


def test_as_many_tokens_may_be_demanded_as_the_answer_may_have() -> None:
    (prompt,) = prepare(chat(max_tokens=4, min_tokens=4), LETTERS, READY)
    assert prompt.samplings[0].min_tokens == 4
    with pytest.raises(ApiError, match="greater than the 4 tokens") as refused:
        prepare(chat(n=2, max_tokens=4, choice_params=[{}, {"min_tokens": 5}]), LETTERS, READY)
    assert refused.value.param == "choice_params.1.min_tokens"


def test_a_bad_word_that_the_tokenizer_drops_bans_nothing() -> None:
    backend = tokenizers.Tokenizer.from_str(LETTERS.backend.to_str())
    backend.normalizer = tokenizers.normalizers.Sequence(
        [tokenizers.normalizers.Replace("z", ""), tokenizers.normalizers.Strip()]
    )
    tokenizer = Tokenizer(backend, LETTERS.table, LETTERS.template, 0)
    (drawn,) = prepare(chat(bad_words=["z"]), tokenizer, READY)[0].samplings
    assert drawn == Sampling()
