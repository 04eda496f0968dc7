"""Orders turned into tokens, with the vocabulary and the context known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import tokenizers
from tokenizers import decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE, WordLevel

from engine.server.asking.order import Order
from engine.server.preparing.prompts import prepare, tokens_of
from engine.text.detokenizer import TokenBytes
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from nproxy.openai.errors import ApiError
from tests.engine.server.letters import LETTERS, READY, chat, completion, only, text_of


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logit_bias": {"300": 1}}, "logit_bias"),
        ({"allowed_token_ids": [3, 300]}, "allowed_token_ids"),
        ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
        ({"min_tokens": 96}, "min_tokens"),
        ({"n": 2, "choice_params": [{}, {"logit_bias": {"300": 1}}]}, "choice_params.1.logit_bias"),
        ({"n": 2, "choice_params": [{"min_tokens": 4, "max_tokens": 3}, {}]}, "choice_params.0.min_tokens"),
    ],
)
def test_refused_when_the_vocabulary_and_the_limit_are_known(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as refused:
        prepare(chat(**fields), LETTERS, READY)
    assert (refused.value.status, refused.value.param) == (400, param)


def test_a_text_with_a_token_that_the_model_lacks_is_refused() -> None:
    """A tokenizer may have more than the model, as that of a fine-tune with a token to pad with."""
    few = replace(READY, vocab_size=max(LETTERS.encode("az")))
    for order in (completion(prompt="az"), chat(messages=[{"role": "user", "content": "az"}])):
        with pytest.raises(ApiError, match="a token of the tokenizer that is outside the model") as refused:
            prepare(order, LETTERS, few)
        assert refused.value.status == 400
    with pytest.raises(ApiError, match="a token of the tokenizer that is outside"):
        tokens_of("az", LETTERS, few, "input")


def test_bad_words_are_spelled_with_and_without_a_space() -> None:
    """With a token per byte a space is a token more, and the bare word is banned behind it as anywhere."""
    (sampling,) = only(chat(bad_words=["ab", " c"])).samplings
    assert sampling.bad_words == tuple(sorted({LETTERS.encode_chat("ab"), LETTERS.encode_chat("c")}))
    (sampling,) = only(chat(bad_words=["\n", "  "])).samplings
    assert sampling.bad_words == tuple(sorted({LETTERS.encode_chat("\n"), LETTERS.encode_chat("  ")}))
    backend = tokenizers.Tokenizer(WordLevel({"<u>": 0, "no": 1, "▁no": 2, "▁": 3}, unk_token="<u>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    backend.decoder = decoders.Metaspace()
    words = Tokenizer(backend, TokenBytes.of(backend), LETTERS.template, None)
    (sampling,) = prepare(chat(bad_words=["no"]), words, READY)[0].samplings
    assert sampling.bad_words == ((1,), (2,))


@pytest.mark.parametrize(
    ("word", "banned"),
    [
        ("ab", ((1, 2), (6,))),  # "a", "b" and "▁ab"
        ("cd", ((7, 4), (8,))),  # "▁c", "d" and "cd"
        ("db", ((4, 2),)),  # after a space, too: the space is a token of its own
        ("x", ()),  # the normalizer leaves nothing of it
    ],
)
def test_a_bad_words_spellings_may_differ_in_length(word: str, banned: tuple[tuple[int, ...], ...]) -> None:
    tokens = ["▁", "a", "b", "c", "d", "▁a", "▁ab", "▁c", "cd"]
    merges = [("▁", "a"), ("▁a", "b"), ("▁", "c"), ("c", "d")]
    backend = tokenizers.Tokenizer(BPE({token: number for number, token in enumerate(tokens)}, merges))
    backend.normalizer = normalizers.Sequence([normalizers.Replace("x", ""), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Metaspace()
    tokenizer = Tokenizer(backend, TokenBytes.of(backend), None, None)
    (sampling,) = prepare(completion(prompt=[1], bad_words=[word]), tokenizer, READY)[0].samplings
    assert sampling.bad_words == banned


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([{"role": "user", "content": "hi"}], "u:hi;"),
        ([{"role": "system", "content": "s"}, {"role": "assistant", "content": None}], "s:s;a:;"),
        ([{"role": "assistant"}], "a:;"),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}], "u:a\nb;"),
        ([{"role": "user", "content": "x", "name": "n", "tool_calls": []}], "u:x;"),
    ],
)
def test_messages(messages: list[Any], text: str) -> None:
    prompt = only(chat(messages=messages))
    assert text_of(prompt) == text
    assert prompt.tokens[0] != 0  # no <s>: the template writes what it wants


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ("hi", "messages"),
        (["hi"], "messages.0"),
        ([{"content": "x"}], "messages.0.role"),
        ([{"role": "user", "content": 5}], "messages.0.content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "messages.0.content"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages.0.content.0.text"),
    ],
)
def test_messages_that_cannot_be_read(messages: Any, param: str) -> None:
    with pytest.raises(ApiError) as refused:
        prepare(chat(messages=messages), LETTERS, READY)
    assert (refused.value.status, refused.value.param) == (400, param)


def test_a_template_that_refuses_is_a_400() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(ApiError, match="roles must alternate") as refused:
        prepare(chat(), Tokenizer(LETTERS.backend, LETTERS.table, template, 0), READY)
    assert (refused.value.status, refused.value.param) == (400, "messages")


def test_a_base_model_takes_no_chat() -> None:
    with pytest.raises(ApiError, match="no chat template"):
        prepare(chat(), Tokenizer(LETTERS.backend, LETTERS.table, None, 0), READY)


def test_the_templates_own_variables() -> None:
    assert text_of(only(chat(chat_template_kwargs={"think": "no"}))) == "u:hi;no"


HI = (0, *LETTERS.encode_chat("hi"))


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [
        ("hi", [HI]),
        (["hi", "hi"], [HI, HI]),
        ([5, 6], [(5, 6)]),
        ([[5], [6, 7]], [(5,), (6, 7)]),
        ([""], [(0,)]),
    ],
)
def test_J_prompts(prompt: Any, tokens: list[tuple[int, ...]]) -> None:
    assert [p.tokens for p in prepare(completion(prompt=prompt), LETTERS, READY)] == tokens


def test_J5_an_empty_prompt_where_no_token_begins_a_text() -> None:
    backend = tokenizers.Tokenizer.from_str(LETTERS.backend.to_str())
    backend.post_processor = processors.Sequence([])
    with pytest.raises(ApiError, match="no token") as refused:
        prepare(completion(prompt=""), Tokenizer(backend, LETTERS.table, None, None), READY)
    assert refused.value.param == "prompt"


def test_J_token_ids_outside_the_vocabulary() -> None:
    with pytest.raises(ApiError) as refused:
        prepare(completion(prompt=[[5], [300]]), LETTERS, READY)
    assert (refused.value.status, refused.value.param) == (400, "prompt")


def test_J6_echo_gives_the_text_of_texts_and_of_tokens() -> None:
    spelled = LETTERS.encode_chat("größer")
    prompts = prepare(completion(prompt="Hé", echo=True), LETTERS, READY)
    prompts += prepare(completion(prompt=[0, *spelled], echo=True), LETTERS, READY)
    assert [prompt.echo for prompt in prompts] == ["Hé", "größer"]
    assert only(completion(prompt="Hé")).echo == ""


@pytest.mark.parametrize(
    ("order", "new"),
    [
        (completion(), 16),
        (completion(prompt=[1] * 90), 10),
        (completion(max_tokens=97), 97),
        (chat(), 95),
        (chat(max_tokens=5), 5),
        (chat(max_completion_tokens=5), 5),
        (chat(max_tokens=5, max_completion_tokens=5), 5),
    ],
)
def test_how_many_tokens_may_follow(order: Order, new: int) -> None:
    assert only(order).limits == (new,)


def test_a_pool_smaller_than_the_context_is_the_context() -> None:
    small = replace(READY, blocks=2)
    assert prepare(chat(), LETTERS, small)[0].limits == (32 - 5,)
    with pytest.raises(ApiError, match="maximum context length is 32"):
        prepare(chat(max_tokens=28), LETTERS, small)


@pytest.mark.parametrize(
    ("order", "param"),
    [
        (completion(prompt=[1] * 100), "prompt"),
        (completion(prompt=[1] * 90, max_tokens=11), "prompt"),
        (completion(prompt="x" * 100_000), "prompt"),
        (chat(max_tokens=96), "messages"),
        (chat(messages=[{"role": "user", "content": "x" * 98}]), "messages"),
    ],
)
def test_longer_than_the_context(order: Order, param: str) -> None:
    with pytest.raises(ApiError, match="maximum context length is 100") as refused:
        prepare(order, LETTERS, READY)
    error = refused.value
    assert (error.status, error.code, error.param) == (400, "context_length_exceeded", param)
