"""How the tokens of a choice are drawn: the request's sampling fields, read and settled.

Names and bounds are OpenAI's, or vLLM's where OpenAI has no such field.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from engine.messages import Sampling
from engine.server.asking.members import Members, is_integer
from engine.text.tokenizer import Tokenizer
from nproxy.openai.errors import invalid_request
from nproxy.openai.refusals import below, wrong_type

FIELDS = frozenset(
    {
        "allowed_token_ids",
        "bad_words",
        "frequency_penalty",
        "logit_bias",
        "min_p",
        "min_tokens",
        "presence_penalty",
        "repetition_penalty",
        "temperature",
        "top_k",
        "top_p",
    }
)
"""All that is read here; a choice may have its own of each."""

_GREEDY_BELOW = 1e-5  # dividing logits by less overflows, and draws the likeliest token anyway
_ALL_TOKENS = 1 << 30  # more than any vocabulary holds: a top_k beyond it asks for nothing


def read_sampling(members: Members) -> Sampling:
    """Read all but bad_words, which take a tokenizer; raises ApiError 400 naming the field at fault."""
    return replace(
        _distribution(members),
        presence_penalty=members.number("presence_penalty", 0.0, -2.0, 2.0),
        frequency_penalty=members.number("frequency_penalty", 0.0, -2.0, 2.0),
        repetition_penalty=members.number("repetition_penalty", 1.0, 0.01, 100.0),
        logit_bias=_logit_bias(members),
        allowed_tokens=_allowed_tokens(members),
        min_tokens=members.integer("min_tokens", 0) or 0,
    )


def _distribution(members: Members) -> Sampling:
    temperature = members.number("temperature", 1.0, 0.0, 2.0)
    top_p = members.number("top_p", 1.0, 0.0, 1.0)
    min_p = members.number("min_p", 0.0, 0.0, 1.0)
    top_k = members.integer("top_k", -1) or 0
    if temperature < _GREEDY_BELOW:
        return Sampling(temperature=0.0)
    if top_p == 0:  # the smallest set of tokens is the likeliest one alone
        return Sampling(temperature=temperature, top_k=1)
    return Sampling(temperature, top_k if 0 < top_k < _ALL_TOKENS else 0, top_p, min_p)


def _logit_bias(members: Members) -> tuple[tuple[int, float], ...]:
    value, name = members.get("logit_bias"), members.called("logit_bias")
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise wrong_type(name, "an object of biases by token id", value)
    biases = Members(value, name + ".")
    return tuple([(_token(key, name), biases.number(key, 0.0, -100.0, 100.0)) for key in value])


def _token(key: str, name: str) -> int:
    if not (key.isascii() and key.isdecimal() and len(key) < 10):
        raise invalid_request(f"The keys of '{name}' are token ids.", param=name, code="invalid_type")
    return int(key)


def _allowed_tokens(members: Members) -> tuple[int, ...] | None:
    tokens = read_tokens(members, "allowed_token_ids")
    if tokens == ():
        name = members.called("allowed_token_ids")
        raise invalid_request(f"'{name}' allows no token at all.", param=name, code="empty_array")
    return tokens


def read_tokens(members: Members, name: str) -> tuple[int, ...] | None:
    """A list of token ids, each once, in order; None where it is absent. Raises ApiError 400 naming the place."""
    value, called = members.get(name), members.called(name)
    if value is None:
        return None
    if not isinstance(value, list):
        raise wrong_type(called, "an array of token ids", value)
    for place, token in enumerate(value):
        if not is_integer(token):
            raise wrong_type(f"{called}.{place}", "a token id", token)
        if token < 0:
            raise below(f"{called}.{place}", token, 0)
    return tuple(sorted({token for token in value if is_integer(token)}))


def read_bad_words(members: Members) -> tuple[str, ...]:
    """The texts of `bad_words`; raises ApiError 400 naming the place."""
    value, name = members.get("bad_words"), members.called("bad_words")
    if value is None:
        return ()
    if not isinstance(value, list):
        raise wrong_type(name, "an array of strings", value)
    words = []
    for place, word in enumerate(value):
        if not isinstance(word, str):
            raise wrong_type(f"{name}.{place}", "a string", word)
        if not word.strip():
            raise invalid_request(f"'{name}.{place}' is empty.", param=f"{name}.{place}", code="invalid_value")
        words.append(word)
    return tuple(words)


def settle(sampling: Sampling, bad_words: Iterable[str], tokenizer: Tokenizer, vocabulary: int, where: str) -> Sampling:
    """Turn words into tokens, and see that all tokens exist; raises ApiError 400 naming the field.

    vocabulary: its size. where: what stands before the fields' names.
    """
    for name, tokens in {
        "logit_bias": [token for token, _ in sampling.logit_bias],
        "allowed_token_ids": sampling.allowed_tokens or (),
    }.items():
        if max(tokens, default=0) >= vocabulary:
            param = where + name
            raise invalid_request(f"'{param}' names a token outside the model's vocabulary.", param=param)
    spelled = {tokens for word in bad_words for tokens in _spellings(word, tokenizer)}
    return replace(sampling, bad_words=tuple(sorted(spelled))) if spelled else sampling


def _spellings(word: str, tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """A word's tokens at the beginning of a text, and those behind a space where that is spelled as one word, too."""
    bare = tokenizer.encode_chat(word.lstrip())
    spaced = tokenizer.encode_chat(" " + word.lstrip())
    return [bare, spaced] if len(spaced) == len(bare) and spaced[0] != bare[0] else [bare]
