"""Tokens to text: complete characters only, and in the end what decoding all at once gives."""

from __future__ import annotations

import random
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import decoders
from tokenizers.models import BPE, WordPiece

from engine.errors import ModelError
from engine.text.detokenizer import Detokenizer, TokenBytes
from engine.text.tokenizer import Tokenizer, load_tokenizer

BYTES = TokenBytes(bytes([byte]) for byte in range(256))


def pieces(table: TokenBytes, tokens: list[int]) -> list[str]:
    detokenizer = Detokenizer(table)
    return [*(detokenizer.feed(token) for token in tokens), detokenizer.flush()]


def test_a_number_that_no_vocabulary_reaches_is_refused() -> None:
    backend = Backend(BPE(vocab={"a": 0, "b": 1 << 22}, merges=[]))
    backend.decoder = decoders.ByteLevel()
    with pytest.raises(ModelError, match="a token with the number 4194304"):
        TokenBytes.of(backend)


@given(st.text(max_size=40))
def test_byte_by_byte_gives_whole_characters(text: str) -> None:
    shown = pieces(BYTES, list(text.encode()))
    assert "".join(shown) == text
    assert all(len(piece) <= 1 for piece in shown)


@given(st.binary(max_size=60))
def test_any_bytes_give_what_decoding_at_once_gives(data: bytes) -> None:
    assert "".join(pieces(BYTES, list(data))) == data.decode(errors="replace")


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"a\xf0\x9f\x98", ["a", "", "", "", "\ufffd"]),  # ends in mid-character
        (b"\xf0\x9f!", ["", "", "\ufffd!", ""]),  # broken off: shown as soon as that is certain
        (b"\xff!", ["\ufffd", "!", ""]),
    ],
)
def test_bytes_that_are_no_character(data: bytes, shown: list[str]) -> None:
    assert pieces(BYTES, list(data)) == shown


def test_a_token_beyond_the_vocabulary_is_nothing() -> None:
    assert pieces(TokenBytes([b"a"]), [0, 5, 0]) == ["a", "", "a", ""]


def test_other_decoders_are_refused() -> None:
    backend = Backend(WordPiece({"a": 0}, unk_token="a"))
    backend.decoder = decoders.WordPiece()
    with pytest.raises(ModelError, match="WordPiece"):
        TokenBytes.of(backend)


@pytest.fixture(scope="module")
def tokenizer(default_model: Path) -> Tokenizer:
    return load_tokenizer(default_model)


@pytest.mark.model
def test_random_tokens_of_the_real_vocabulary(tokenizer: Tokenizer) -> None:
    generator = random.Random(20)
    size = tokenizer.backend.get_vocab_size()
    for length in (1, 2, 3, 10, 100, 5000):
        tokens = [generator.randrange(size) for _ in range(length)]
        assert "".join(pieces(tokenizer.table, tokens)) == tokenizer.backend.decode(tokens)


TEXTS = [
    "Plain words, and  two spaces.",
    "  leading and trailing  ",
    "naïve café – “quoted” … ½",
    "家族 👨‍👩‍👧‍👦 と 🇯🇵 の 旗",
    "مرحبا بالعالم, שלום, नमस्ते, สวัสดี",
    "🏳️‍🌈🤷🏽‍♀️ 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 \U0001f9d1\u200d\U0001f680",
    "tabs\tand\r\nline\n\n\nbreaks",
    "x = 12345; print(f'{x:>10}')  # 3.14159",
    "\u0000\u0007 \ufeffBOM inside",
]


@pytest.mark.model
@pytest.mark.parametrize("text", TEXTS)
def test_real_texts_come_back(tokenizer: Tokenizer, text: str) -> None:
    tokens = list(tokenizer.encode(text))
    shown = pieces(tokenizer.table, tokens)
    assert "".join(shown) == text == tokenizer.decode(tokens)
    assert "\ufffd" not in "".join(shown)


@pytest.mark.model
def test_no_piece_holds_half_a_character(tokenizer: Tokenizer) -> None:
    every = "".join(chr(code) for code in range(0x20, 0x1F700, 97) if unicodedata.category(chr(code))[0] not in "C")
    shown = pieces(tokenizer.table, list(tokenizer.encode(every)))
    assert "".join(shown) == every


@pytest.mark.model
def test_special_tokens_are_not_shown(tokenizer: Tokenizer) -> None:
    tokens = list(tokenizer.encode("<|im_start|>user\nhi<|im_end|>"))
    assert "".join(pieces(tokenizer.table, tokens)) == "user\nhi"
