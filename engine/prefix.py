"""The keys of full blocks, by which sequences with the same beginning find each other's blocks. No torch.

The keys and values of a block depend on all tokens before it. So a block's key is a hash of its own tokens and of the
key of the block before it; the first block's key depends on a root, which determines among which requests blocks are
shared. The tokens themselves are not compared: 256 bits of BLAKE2b (RFC 7693) do not collide, even if somebody tries.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

_BYTES = 32


def root(*scope: str | int | None) -> bytes:
    """Return the root of all chains of one scope; another scope's blocks are never found from it."""
    return blake2b(repr(scope).encode(), digest_size=_BYTES).digest()


def chain(before: bytes, tokens: Sequence[int], block_size: int) -> list[bytes]:
    """Return the keys of whole blocks of tokens (hashed as int64) behind the block with the key `before`, or a root."""
    keys: list[bytes] = []
    for start in range(0, len(tokens), block_size):
        before = blake2b(before + array("q", tokens[start : start + block_size]).tobytes(), digest_size=_BYTES).digest()
        keys.append(before)
    return keys
