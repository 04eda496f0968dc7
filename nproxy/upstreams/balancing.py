"""Which replica takes the next leg."""

from __future__ import annotations

from collections.abc import Sequence

from nproxy.upstreams.replicas import Replica


def least_loaded(replicas: Sequence[Replica], parallel: int | None, turn: int) -> Replica | None:
    """The replica with the fewest choices in flight among those with room; None when all are full.

    parallel: calls at once per replica, None for no limit. turn: a running number; equals take turns by it.
    Replicas that could not be reached a moment ago come last.
    """
    if len(replicas) == 1:
        only = replicas[0]
        return only if only.has_room(parallel) else None
    count = len(replicas)
    best: Replica | None = None
    best_rank: tuple[bool, int, int] | None = None
    for position, replica in enumerate(replicas):
        if not replica.has_room(parallel):
            continue
        rank = (replica.avoided(), replica.choices, (position - turn) % count)
        if best_rank is None or rank < best_rank:
            best, best_rank = replica, rank
    return best
