"""Seeds of legs: choice i of a request with seed s answers as a single request with seed s + i would.

If a server takes s but finds s + i too large, choice i gets the same seed reduced to 31 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nproxy.choices.leg import Leg

RANDOM_SEED_COUNT = 2**31  # 31 bits: every server can hold them, also one that reads a signed 32-bit integer
_UNSEEDED = -1  # llama.cpp and vLLM choose a seed themselves then; an offset would make it a real seed


def offset_seed(seed: int, offset: int) -> int:
    """Return the seed of the choice at `offset`: seed + offset, wrapped to a signed 64-bit integer; -1 stays -1."""
    if seed == _UNSEEDED:
        return seed
    return (seed + offset + 2**63) % 2**64 - 2**63


def in_31_bits(seed: int) -> int:
    """Return the seed itself if every server can hold it, else one in its place."""
    return seed % RANDOM_SEED_COUNT


def seeded(legs: Sequence[Leg], seed: int | None, draw: Callable[[], int], taken: set[int]) -> list[Leg]:
    """Return the same legs with the seeds that they carry on the wire.

    seed: the client's; without one, every leg gets a random seed that no other leg of the request has, so that a server
    with a fixed default seed still answers differently. taken: random seeds already used; the new ones are added.
    """
    if seed is not None:
        return [leg.seeded(offset_seed(seed, leg.offset)) for leg in legs]
    given = []
    for leg in legs:
        drawn = draw() % RANDOM_SEED_COUNT
        while drawn in taken:
            drawn = (drawn + 1) % RANDOM_SEED_COUNT
        taken.add(drawn)
        given.append(leg.seeded(drawn))
    return given
