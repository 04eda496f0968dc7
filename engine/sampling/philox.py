"""Philox 4x32-10, vectorised in torch: random numbers as a function of a key and a counter, without state.

Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). 32-bit words are held in int64,
whose products wrap like unsigned ones. Devices and the kernels in C make the same numbers: engine/kernels/noise.py,
engine/native/c/draws.h.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

_WORD = 0xFFFFFFFF
_MULTIPLIERS = torch.tensor([[0xD2511F53], [0xCD9E8D57]])
_WEYL = torch.tensor([[0x9E3779B9], [0xBB67AE85]])
_ROUNDS = torch.arange(10).view(-1, 1, 1) * _WEYL  # [10, 2, 1], what is added to the key


def philox(counter: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Return four random words of each counter: counter [4, N] and key [2, N], words 0 .. 2^32 - 1 in
    int64, -> [4, N].
    """
    even, odd = counter[0::2], counter[1::2]  # words 0 and 2, words 1 and 3
    for keys in ((key + _ROUNDS) & _WORD).unbind():
        product = even * _MULTIPLIERS
        high, low = (product >> 32) & _WORD, product & _WORD
        even, odd = high.flip(0) ^ odd ^ keys, low.flip(0)
    return torch.stack((even, odd), 1).flatten(0, 1)


def uniforms(seeds: torch.Tensor, positions: torch.Tensor, count: int, stream: int) -> torch.Tensor:
    """Return numbers in (0, 1), of 32 random bits, for each (seed, position), both int64 [N]; float64 [N, count].

    The seed is the key, the position is half of the counter. The other half counts the numbers and contains the stream
    (0, 1, ...), so different streams of one (seed, position) use different counters.
    """
    return _uniforms(seeds, positions, ((stream, count),))[0]


def exponentials(seeds: torch.Tensor, positions: torch.Tensor, counts: Sequence[int]) -> list[torch.Tensor]:
    """Return standard exponential variates, above 0, made from the `uniforms` of streams 0, 1, ...: counts[i] of each.

    All come from the same rounds, because their operations take longer to call than to run.
    """
    return [numbers.log_().neg_() for numbers in _uniforms(seeds, positions, tuple(enumerate(counts)))]


def _uniforms(seeds: torch.Tensor, positions: torch.Tensor, streams: Sequence[tuple[int, int]]) -> list[torch.Tensor]:
    """Like `uniforms`, for several (stream, count)."""
    lengths = [-(-count // 4) for _, count in streams]  # one counter value gives four numbers
    lanes = torch.cat([torch.arange(length) for length in lengths])
    named = torch.cat([torch.full((length,), stream) for (stream, _), length in zip(streams, lengths, strict=True)])
    shape = (len(seeds), len(lanes))
    counter = torch.stack(
        (
            (positions & _WORD).unsqueeze(1).expand(shape),
            ((positions >> 32) & _WORD).unsqueeze(1).expand(shape),
            lanes.expand(shape),
            named.expand(shape),
        )
    )  # [4, N, lanes]
    key = torch.stack((seeds & _WORD, (seeds >> 32) & _WORD)).unsqueeze(2).expand(2, *shape)
    words = philox(counter.flatten(1), key.flatten(1)).view(4, *shape).permute(1, 2, 0)  # [N, lanes, 4]
    parts = zip(torch.split(words, lengths, 1), streams, strict=True)
    return [(part.reshape(len(seeds), -1)[:, :count].double() + 0.5) * 2.0**-32 for part, (_, count) in parts]
