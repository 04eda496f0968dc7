"""Requests with everything about them drawn: whatever bytes come, they are a request within bounds or a clean refusal.

`play(rng)` draws a body, has it parsed for both endpoints, and raises for any other end, for a request that is wider
than the limits, and for bytes that say another thing than what was read of them.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

from nproxy.openai.body import Body
from nproxy.openai.errors import ApiError
from nproxy.openai.requests import Limits, parse_chat, parse_completion

LIMITS = Limits(max_n=16, max_choices=64)

GOOD: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "kind"},
        {"role": "user", "content": [{"type": "text", "text": "\u00e9"}]},
    ],
    "prompt": ["a", "b"],
    "n": 2,
    "best_of": 3,
    "seed": 7,
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0.7,
    "top_p": 1,
    "max_tokens": 5,
    "logprobs": True,
    "top_logprobs": 2,
    "stop": ["\n"],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "choice_params": [{"temperature": 0}, {"seed": 3}],
    "logit_bias": {"5": -100},
    "user": "u",
}

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 16, 17, 64, 65, 2**31, 2**63, 2**64, 10**40, 0.0, 0.5, 1.0, 2.0, -0.0, 1e308),
    *("", " ", "1", "m", "\u0000", "\U0001f600", "x" * 2000, [], {}, [[]], [1], [1, 2], [[1], [2]], ["a", 1], [None]),
    *({"": None}, [{}], [{"role": "user"}], [{"n": 1}, {}], [{"temperature": "x"}], {"include_usage": 1}, [[[]]]),
)

BYTES = (
    *(b"NaN", b"Infinity", b"-Infinity", b"1e999", b"9" * 5000, b"01", b"+1", b"1.", b".5", b"-", b"0x1", b"tru"),
    *(
        b"\\ud800",
        b"\\udc00\\ud800",
        b"\\u00",
        b"\\x",
        b"\\",
        b"\xff",
        b"\xed\xa0\x80",
        b"\xef\xbb\xbf",
        b"\xc2\xa0",
        b"\0",
    ),
    *(b"[" * 100, b"{" * 100, b'{"a":' * 70, b'"n":3,', b",", b":", b'"', b"'", b" ", b"//", b"]", b"}"),
)


def play(rng: Random) -> None:
    """Draw a body and parse it; raises AssertionError for what must not be."""
    raw = _drawn(rng)
    for parse in (parse_chat, parse_completion):
        try:
            body = Body.parse(raw)
            request = parse(body, LIMITS, rng.choice((None, "default")))
        except ApiError as refusal:
            assert 400 <= refusal.status < 500, refusal
            assert json.loads(refusal.envelope())["error"]["message"]
            continue
        assert 1 <= request.n <= LIMITS.max_n
        assert request.choices <= LIMITS.max_choices
        assert json.loads(body.raw.decode()) == body.fields
        spliced = json.loads(bytes(body.splice({"n": 1, "new": [True]}, ("seed",))).decode())
        assert spliced == {**{key: value for key, value in body.fields.items() if key != "seed"}, "n": 1, "new": [True]}


def _drawn(rng: Random) -> bytes:
    fields = {key: value for key, value in GOOD.items() if key in ("model", "messages", "prompt") or rng.random() < 0.2}
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        _change(rng, fields)
    raw = json.dumps(
        fields, ensure_ascii=rng.random() < 0.5, separators=rng.choice(((",", ":"), (", ", ": ")))
    ).encode()
    if rng.random() < 0.1:
        raw = raw[:-1] + b"," + json.dumps({rng.choice(list(GOOD)): rng.choice(ODD)}).encode()[1:]  # a key twice
    while rng.random() < 0.25:
        at = rng.randint(0, len(raw))
        raw = raw[:at] + rng.choice(BYTES) + raw[at + rng.choice((0, 0, 1, 30)) :]
    return raw if rng.random() < 0.95 else raw[: rng.randint(0, len(raw))]


def _change(rng: Random, fields: dict[str, Any]) -> None:
    key = rng.choice(list(GOOD))
    match rng.randrange(3):
        case 0:
            fields.pop(key, None)
        case 1:
            fields[key] = rng.choice(ODD)
        case _:
            fields[key] = {rng.choice(("a", "", "n")): rng.choice(ODD)} if rng.random() < 0.5 else [rng.choice(ODD)] * 3
