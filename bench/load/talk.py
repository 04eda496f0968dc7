"""The text of a choice: it follows from the seed, so that every byte can be checked without storing it.

All texts are slices of one ring of characters: plain ones, some that JSON escapes, and some of two to four bytes. Token
`number` of a choice with this seed is `WIDTH` characters from `start(seed) + number * WIDTH` on.
"""

from __future__ import annotations

import json
import random

WIDTH = 5
"""Characters per token."""

PROMPT_TOKENS = 7
"""The prompt tokens in the usage of each call."""

_ROUND = 1 << 16
_ALPHABET = "abcdefghijklmnopqrstuvwxyz      ,.ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789" * 3 + '"\\\n\té漢🙂'

RING = "".join(random.Random("talk").choices(_ALPHABET, k=_ROUND)) * 2
"""The ring twice, so that a text of up to its length is one slice, wherever it begins."""

MOST_TOKENS = _ROUND // WIDTH


def start(seed: int) -> int:
    """Return where the text of a choice with this seed begins in the ring."""
    return seed * 40503 % _ROUND


def token(seed: int, number: int) -> str:
    """Return one token."""
    at = start(seed) + number * WIDTH
    return RING[at : at + WIDTH]


def text(seed: int, tokens: int) -> str:
    """Return the whole text of so many tokens."""
    at = start(seed)
    return RING[at : at + tokens * WIDTH]


def written(said: str) -> bytes:
    """Return the text as written between the quotes of a JSON string."""
    return json.dumps(said, ensure_ascii=False)[1:-1].encode()
