"""How many tokens a request is thought to spend."""

from __future__ import annotations

import pytest

from nproxy.gateway.admission.guess import guess
from nproxy.gateway.admission.messages import Ask, message_of, to_bytes
from nproxy.openai.body import Body
from nproxy.openai.requests import Limits, parse_chat
from nproxy.openai.usage import MOST_TOKENS
from nproxy.workers.messages import Admission, decode, encode


def guessed(choices: int, **fields: str) -> int:
    """Of a chat request of 400 bytes with further fields, written as JSON."""
    more = "".join(f', "{name}": {value}' for name, value in fields.items())
    head, tail = '{"model": "m", "messages": [{"role": "user", "content": "', f'"}}]{more}}}'
    raw = (head + "x" * (400 - len(head) - len(tail)) + tail).encode()
    return guess(parse_chat(Body.parse(raw), Limits(max_n=128, max_choices=512), None), choices)


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({}, 100),
        ({"max_tokens": "7"}, 100 + 3 * 7),
        ({"max_completion_tokens": "5", "max_tokens": "7"}, 100 + 3 * 5),
        ({"max_completion_tokens": "null", "max_tokens": "7"}, 100 + 3 * 7),
        ({"max_tokens": "0"}, 100),
        ({"max_tokens": "-7"}, 100),
        ({"max_tokens": "true"}, 100),
        ({"max_tokens": "1e9"}, 100),
        ({"max_tokens": '"7"'}, 100),
    ],
)
def test_the_prompt_by_its_length_and_what_is_asked_for(fields: dict[str, str], tokens: int) -> None:
    assert guessed(3, **fields) == tokens


def test_each_choice_may_have_a_limit_of_its_own() -> None:
    each = '[{"max_tokens": 5}, {"max_completion_tokens": 6}, {"top_p": 1}]'
    assert guessed(3, n="3", max_tokens="7", choice_params=each) == 100 + 5 + 6 + 7
    assert guessed(3, n="3", choice_params=each) == 100 + 5 + 6


def test_a_number_of_thousands_of_digits_is_no_message_that_cannot_be_read() -> None:
    """The parent replaces a worker that sends it such a thing."""
    raw = b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": %b}' % (b"9" * 4299)
    tokens = guess(parse_chat(Body.parse(raw), Limits(max_n=128, max_choices=512), None), 64)
    assert tokens == MOST_TOKENS
    ask = Ask("7-1", "ann", "u", 64, tokens)
    told = decode(encode(Admission(to_bytes(ask))))
    assert isinstance(told, Admission)
    assert message_of(told.message) == ask
