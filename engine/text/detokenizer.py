"""Tokens to text, one at a time: only complete UTF-8, and the same text as decoding all tokens at once.

Of bytes that are no UTF-8, each invalid sequence becomes one U+FFFD, while `tokenizers` gives up a whole run of byte
tokens, with what is valid in it.

A table has every token's bytes, so a token costs one lookup, however long the answer is. Decoding a window of tokens
again and again, the usual way, costs a call into the tokenizer for each token, and fails if a character's bytes are
spread over tokens that are not valid text by themselves.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Container, Iterable, Mapping
from functools import partial
from typing import Any

from tokenizers import Tokenizer

from engine.errors import ModelError

_MOST_TOKENS = 1 << 22  # every number up to the last one takes memory; large vocabularies have 2**18 tokens


class TokenBytes:
    """The bytes of every token. Special tokens have none, because they are not shown.

    special: the spelling of special tokens, for cases in which they are shown nevertheless. longest: the length of the
    longest token, including special ones: m tokens hold no text of more than m x longest characters.
    """

    __slots__ = ("_bytes", "_texts", "longest", "special")

    def __init__(self, pieces: Iterable[bytes], special: Mapping[int, bytes] | None = None) -> None:
        self._bytes = tuple(pieces)
        self._texts = tuple(_text_or_none(piece) for piece in self._bytes)
        self.special = special or {}
        self.longest = max(map(len, self._bytes), default=1)

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> TokenBytes:
        """Read the table from a tokenizer; raise ModelError for a decoder that is not byte-wise."""
        vocabulary = tokenizer.get_vocab(with_added_tokens=True)
        if (last := max(vocabulary.values(), default=-1)) >= _MOST_TOKENS:
            raise ModelError(f"the tokenizer has a token with the number {last}, which no model has")
        # What a decoder is, only its pickle says; the text of the whole tokenizer says it too, but is long to read.
        to_bytes = _reader(None if tokenizer.decoder is None else json.loads(tokenizer.decoder.__getstate__()))
        special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        pieces = [b""] * (last + 1)
        for token, number in vocabulary.items():
            if number not in special:
                pieces[number] = to_bytes(token)
        table = cls(pieces, {number: token.encode() for token, number in vocabulary.items() if number in special})
        table.longest = max(table.longest, max(map(len, vocabulary), default=1))
        return table

    def bytes_of(self, token: int) -> bytes:
        """Return the token's bytes; none for a number beyond the vocabulary (padded models have some)."""
        return self._bytes[token] if token < len(self._bytes) else b""

    def text_of(self, token: int) -> str | None:
        """Return the token's text if it is complete by itself, otherwise None."""
        return self._texts[token] if token < len(self._texts) else ""

    def spelling(self, token: int) -> bytes:
        """Return the token's bytes, or a special token's spelling."""
        return self.bytes_of(token) or self.special.get(token, b"")


class Detokenizer:
    """Turns one choice's tokens into text. The text continues a prompt, so a leading space is kept.

    Bytes that can never become a character turn into U+FFFD at once (one for each maximal part, as the Unicode standard
    recommends); bytes that still can are held back. shown: special tokens that are part of the text here.
    """

    __slots__ = ("_pending", "_shown", "_table")

    def __init__(self, table: TokenBytes, shown: Container[int] = frozenset()) -> None:
        self._table = table
        self._shown = shown
        self._pending = b""

    def feed(self, token: int) -> str:
        """Return the text that this token completes; often its own text, sometimes none."""
        if not self._pending:
            text = self._table.text_of(token)
            if text or (text is not None and token not in self._shown):
                return text
        piece = self._table.spelling(token) if token in self._shown else self._table.bytes_of(token)
        return self._decode(piece, final=False)

    def flush(self) -> str:
        """End the choice: return U+FFFD for a character that was begun and not finished, otherwise nothing."""
        return self._decode(b"", final=True)

    def _decode(self, more: bytes, *, final: bool) -> str:
        data = self._pending + more
        text, used = codecs.utf_8_decode(data, "replace", final)
        self._pending = data[used:]
        return text


_Reader = Callable[[str], bytes]
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_letters() -> dict[str, int]:
    """Return the letters in which byte-level vocabularies write bytes: printable ones stand for themselves (GPT-2)."""
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(itself)]
    return {chr(byte): byte for byte in itself} | {chr(256 + i): byte for i, byte in enumerate(others)}


_LETTERS = _byte_letters()


def _byte_level_bytes(token: str) -> bytes:
    """Return the bytes of a token in byte letters; a token with any other character (an added token) is plain text."""
    try:
        return bytes([_LETTERS[letter] for letter in token])
    except KeyError:
        return token.encode()


def _spaced_bytes(token: str, *, mark: str, byte_fallback: bool) -> bytes:
    """Return the bytes of a SentencePiece token: `mark` stands for a space and, with byte_fallback,
    `<0xE4>` for a byte.
    """
    if byte_fallback and (byte := _BYTE_TOKEN.fullmatch(token)):
        return bytes([int(byte[1], 16)])
    return token.replace(mark, " ").encode()


def _text_or_none(piece: bytes) -> str | None:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return None


def _reader(decoder: dict[str, Any] | None) -> _Reader:
    """Return a function from a token to its bytes. `decoder` is the part of that name in tokenizer.json."""
    steps = _steps(decoder)
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return _byte_level_bytes
    if kinds == ["Metaspace"]:
        return partial(_spaced_bytes, mark=steps[0]["replacement"], byte_fallback=False)
    replaced = [step for step in steps if step["type"] == "Replace"]
    if set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"} and len(replaced) == 1:
        mark = replaced[0]["pattern"].get("String")
        if isinstance(mark, str) and replaced[0]["content"] == " ":
            return partial(_spaced_bytes, mark=mark, byte_fallback="ByteFallback" in kinds)
    raise ModelError(f"a tokenizer that decodes by {' + '.join(kinds) or 'nothing'} is not supported")


def _steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [step for inner in decoder["decoders"] for step in _steps(inner)]
    return [decoder]
