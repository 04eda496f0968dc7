"""What a choice says: a text that follows from its seed, so that every byte can be checked without remembering it.

All texts are cuts of one ring of characters, plain ones, some that JSON escapes and some of two to four bytes.
Token `number` of a choice with this seed is `WIDTH` characters from `start(seed) + number * WIDTH` on.
"""

from __future__ import annotations

import json
import random

WIDTH = 5
"""Characters of a token."""

PROMPT_TOKENS = 7
"""What each call says of its prompt."""

_ROUND = 1 << 16
_ALPHABET = "abcdefghijklmnopqrstuvwxyz      ,.ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789" * 3 + '"\\\n\té漢🙂'

RING = "".join(random.Random("talk").choices(_ALPHABET, k=_ROUND)) * 2
"""One round twice over: a text of up to a round of characters is one cut, wherever it begins."""

MOST_TOKENS = _ROUND // WIDTH


def start(seed: int) -> int:
    """Where the text of a choice with this seed begins in the ring."""
    return seed * 40503 % _ROUND


def token(seed: int, number: int) -> str:
    """One token."""
    at = start(seed) + number * WIDTH
    return RING[at : at + WIDTH]


def text(seed: int, tokens: int) -> str:
    """The whole text of so many tokens."""
    at = start(seed)
    return RING[at : at + tokens * WIDTH]


def written(said: str) -> bytes:
    """The text as it stands between the quotes of a JSON string."""
    return json.dumps(said, ensure_ascii=False)[1:-1].encode()
