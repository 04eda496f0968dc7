"""Log probabilities on the wire: tokens by their texts, bytes and offsets."""

from __future__ import annotations

from math import inf
from typing import Any

from engine.messages import Logprobs
from engine.server.answering.logprobs import Spelling
from engine.server.answering.output import ReportedToken
from engine.server.asking.output_options import OutputOptions
from engine.text.detokenizer import TokenBytes

HALF, OTHER_HALF, WORD, END = range(4)
TABLE = TokenBytes([b" \xf0\x9f", b"\x98\x80", b"word", b""], {END: b"<end>"})
TOP = ((WORD, -0.1), (HALF, -2.0), (END, -inf))


def spelling(logprobs: int | None = 2, **output_options: bool) -> Spelling:
    return Spelling(TABLE, OutputOptions(logprobs=logprobs, prompt_logprobs=2, **output_options))


def test_F1_F5_a_chats_entries() -> None:
    reported = [ReportedToken(HALF, Logprobs(-2.0, 2, TOP), 0), ReportedToken(END, Logprobs(-inf, 3, TOP), 1)]
    word = {"token": "word", "logprob": -0.1, "bytes": [*b"word"]}
    half = {"token": " \\xf0\\x9f", "logprob": -2.0, "bytes": [0x20, 0xF0, 0x9F]}
    end = {"token": "<end>", "logprob": -9999.0, "bytes": [*b"<end>"]}
    assert spelling().chat(reported) == {
        "content": [{**half, "top_logprobs": [word, half]}, {**end, "top_logprobs": [word, half]}],
        "refusal": None,
    }
    assert spelling(0).chat(reported[:1]) == {"content": [{**half, "top_logprobs": []}], "refusal": None}


def test_F4_F7_a_legacy_completions_entries() -> None:
    reported = [
        ReportedToken(WORD, None, 0, echoed=True),
        ReportedToken(END, Logprobs(-5.0, 3, TOP), 4),
        ReportedToken(WORD, Logprobs(-0.1, 1), 4),
    ]
    assert spelling().legacy(reported) == {
        "tokens": ["word", "<end>", "word"],
        "token_logprobs": [None, -5.0, -0.1],
        "top_logprobs": [None, {"word": -0.1, "bytes: \\xf0\\x9f": -2.0, "<end>": -5.0}, {"word": -0.1}],
        "text_offset": [0, 4, 4],
    }


def test_of_two_tokens_with_one_text_the_likelier_is_told() -> None:
    twins = TokenBytes([b"x", b"x"])
    reported = [ReportedToken(1, Logprobs(-3.0, 2, ((0, -0.5),)), 0)]
    written = Spelling(twins, OutputOptions(logprobs=1)).legacy(reported)
    assert isinstance(written, dict)
    assert written["top_logprobs"] == [{"x": -0.5}]


def test_tokens_by_their_ids() -> None:
    by_id = spelling(1, as_ids=True)
    reported = [ReportedToken(HALF, Logprobs(-2.0, 2, TOP), 0)]
    assert by_id.legacy(reported) == {
        "tokens": ["token_id:0"],
        "token_logprobs": [-2.0],
        "top_logprobs": [{"token_id:2": -0.1, "token_id:0": -2.0}],
        "text_offset": [0],
    }
    chat: Any = by_id.chat(reported)
    (entry,) = chat["content"]
    assert (entry["token"], entry["top_logprobs"][0]["token"]) == ("token_id:0", "token_id:2")


def test_a_prompts_log_probabilities() -> None:
    assert spelling().prompt((WORD, END), [None, Logprobs(-5.0, 3, TOP)]) == [
        None,
        {
            "3": {"logprob": -5.0, "rank": 3, "decoded_token": "<end>"},
            "2": {"logprob": -0.1, "rank": 1, "decoded_token": "word"},
            "0": {"logprob": -2.0, "rank": 2, "decoded_token": "bytes: \\xf0\\x9f"},
        },
    ]


def test_a_prompts_token_that_is_as_likely_as_another_keeps_its_rank() -> None:
    tied = Logprobs(-0.7, 1, ((END, -0.7), (WORD, -0.7)))
    prompt: Any = spelling().prompt((WORD,), [tied])
    (written,) = prompt
    assert written["2"]["rank"] == written["3"]["rank"] == 1
