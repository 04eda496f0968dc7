"""How the tokens of a choice are drawn: the request's sampling fields.

Names and bounds are OpenAI's, or vLLM's if OpenAI has no such field.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from engine.messages import Sampling
from engine.server.asking.members import Members, is_integer
from engine.text.tokenizer import Tokenizer
from nproxy.openai.errors import invalid_request
from nproxy.openai.jsonvalue import JSON
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
"""All fields that are read here; a choice may have its own of each."""

MOST_WORDS = 1024
"""The most bad words of a request, over all of its choices."""

Spell = Callable[[tuple[str, ...]], tuple[tuple[int, ...], ...]]
"""Returns the token sequences of bad words."""

_LONGEST_WORD = 256  # characters
_MOST_BIASES = 1024  # vLLM's
_MOST_TOKENS = 1 << 20  # more than any vocabulary holds; the size of this one is not known here
_TOO_LONG = "array_above_max_length"
_GREEDY_BELOW = 1e-5  # dividing logits by less overflows, and draws the likeliest token anyway
_ALL_TOKENS = 1 << 30  # more than any vocabulary holds: a top_k beyond it asks for nothing


def read_sampling(members: Members) -> Sampling:
    """Read all fields except bad_words, which need a tokenizer; raise ApiError 400 naming the field at fault."""
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
    if len(value) > _MOST_BIASES:
        raise invalid_request(
            f"'{name}' may have at most {_MOST_BIASES} tokens; 'allowed_token_ids' has no such limit.",
            param=name,
            code=_TOO_LONG,
        )
    biases = Members(value, name + ".")
    by_token = {_token(key, name): biases.number(key, 0.0, -100.0, 100.0) for key in value}  # "5" and "05" are one
    return tuple(by_token.items())


def _token(key: str, name: str) -> int:
    if not (key.isascii() and key.isdecimal() and len(key) < 10):
        raise invalid_request(f"The keys of '{name}' must be token ids.", param=name, code="invalid_type")
    return int(key)


def _allowed_tokens(members: Members) -> tuple[int, ...] | None:
    tokens = read_tokens(members, "allowed_token_ids")
    if tokens == ():
        name = members.called("allowed_token_ids")
        raise invalid_request(f"'{name}' must allow at least one token.", param=name, code="empty_array")
    return tokens


def read_tokens(members: Members, name: str) -> tuple[int, ...] | None:
    """Return a list of token ids, each once, sorted; None if it is absent. Raises ApiError 400 naming the place."""
    value, called = members.get(name), members.called(name)
    if value is None:
        return None
    if not isinstance(value, list):
        raise wrong_type(called, "an array of token ids", value)
    _bound(called, value, _MOST_TOKENS)
    for place, token in enumerate(value):
        if not is_integer(token):
            raise wrong_type(f"{called}.{place}", "a token id", token)
        if token < 0:
            raise below(f"{called}.{place}", token, 0)
    return tuple(sorted({token for token in value if is_integer(token)}))


def read_bad_words(members: Members) -> tuple[str, ...]:
    """Return the texts of `bad_words`; raise ApiError 400 naming the place."""
    value, name = members.get("bad_words"), members.called("bad_words")
    if value is None:
        return ()
    if not isinstance(value, list):
        raise wrong_type(name, "an array of strings", value)
    _bound(name, value, MOST_WORDS)
    words = []
    for place, word in enumerate(value):
        if not isinstance(word, str):
            raise wrong_type(f"{name}.{place}", "a string", word)
        if not word or len(word) > _LONGEST_WORD:
            what = f"is longer than {_LONGEST_WORD} characters" if word else "is empty"
            raise invalid_request(f"'{name}.{place}' {what}.", param=f"{name}.{place}", code="invalid_value")
        words.append(word)
    return tuple(words)


def _bound(name: str, values: list[JSON], most: int) -> None:
    """Refuse a list that would take long to read."""
    if len(values) > most:
        raise invalid_request(f"'{name}' may have at most {most} entries.", param=name, code=_TOO_LONG)


def settle(sampling: Sampling, bad_words: tuple[tuple[int, ...], ...], vocabulary: int, where: str) -> Sampling:
    """Insert the bad words' tokens, and check that all tokens exist; raise ApiError 400 naming the field.

    vocabulary: its size. where: the prefix of the fields' names.
    """
    for name, highest in {
        "logit_bias": max([token for token, _ in sampling.logit_bias], default=0),
        "allowed_token_ids": sampling.allowed_tokens[-1] if sampling.allowed_tokens else 0,  # they are in order
    }.items():
        if highest >= vocabulary:
            param = where + name
            raise invalid_request(f"'{param}' contains a token outside the model's vocabulary.", param=param)
    return replace(sampling, bad_words=bad_words) if bad_words else sampling


def speller(tokenizer: Tokenizer) -> Spell:
    """Return a function that spells the bad words of one request: each word once, with one list for all choices that
    share it.
    """
    spellings = cache(lambda word: _spellings(word, tokenizer))
    return cache(lambda words: tuple(sorted({tokens for word in words for tokens in spellings(word)})))


def _spellings(word: str, tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """Return a word's tokens at the beginning of a text, and those after a space, which may be more or fewer.

    The latter are left out if they end with the former, which are then banned behind the space, too.
    """
    word = word.lstrip() or word  # white space alone is a word, too
    bare, spaced = tokenizer.encode_chat(word), tokenizer.encode_chat(" " + word)
    if not bare:
        return []  # a normalizer may leave nothing
    return [bare] if spaced[-len(bare) :] == bare else [bare, spaced]
