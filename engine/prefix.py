"""The keys of full blocks, by which sequences that begin alike find each other's. No torch.

The keys and values of a block depend on all the tokens before it, so a block's key is a hash of its own tokens
and of the key before it; the first one hangs on a root, which says among whom blocks are shared. Tokens are not
compared again: 256 bits of BLAKE2b (RFC 7693) do not collide, not even when somebody tries.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

_BYTES = 32


def root(*scope: str | int | None) -> bytes:
    """The root of all chains of one scope; another scope's blocks are never found from it."""
    return blake2b(repr(scope).encode(), digest_size=_BYTES).digest()


def chain(before: bytes, tokens: Sequence[int], block_size: int) -> list[bytes]:
    """The keys of whole blocks of tokens (int64) that follow the block with the key `before`, or a root."""
    keys: list[bytes] = []
    for start in range(0, len(tokens), block_size):
        before = blake2b(before + array("q", tokens[start : start + block_size]).tobytes(), digest_size=_BYTES).digest()
        keys.append(before)
    return keys
