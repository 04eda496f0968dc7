"""Which replica takes the next call. Pure: time and randomness are arguments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import accumulate

from nproxy.upstreams.affinity import home
from nproxy.upstreams.replicas import Replica

COMPARED = 3
"""So many replicas are all compared; of more, two that are drawn."""

Draw = Callable[[], float]
"""A random number from 0 up to, not including, 1."""


def standing(replicas: Sequence[Replica], who: object, now: float) -> Sequence[Replica]:
    """The replicas that a request may be sent to, whether they have room or not; see Replica.admits.

    Where none is in order, those are the last resort that can still be tried: looks that fail everywhere may have the
    wrong path, and breakers that are open everywhere may be the work of one client. Envoy's panic threshold likewise
    disregards health where too few are healthy; here what is tried remains bounded by the breakers, but for servers
    that answer, be it with errors: a breaker that is open saves nobody anything there.
    """
    if len(replicas) == 1 and replicas[0].admits(who, now):
        return replicas
    return (
        [replica for replica in replicas if replica.admits(who, now)]
        or [replica for replica in replicas if replica.admits(who, now, last_resort=True)]
        or [replica for replica in replicas if replica.answers(now)]
    )


def choose(
    replicas: Sequence[Replica],
    draw: Draw,
    now: float,
    *,
    parallel: int | None = None,
    failed: Collection[Replica] = (),
    prompt: bytes | None = None,
) -> Replica | None:
    """The replica that takes a call, of those that may; None where none has room.

    parallel: calls at once per replica, None for any number. failed: where this leg has failed, which comes last; room
    at others is waited for where that one would fail again, as one that nobody reaches is free most of all.
    prompt: a hash by which its home is found; None: the least busy takes it.
    """
    if failed:
        replicas = [one for one in replicas if one not in failed or not one.flawed(now)] or replicas
    free = [replica for replica in replicas if replica.has_room(parallel)]
    if len(free) > 1:
        ranks = [(replica in failed, replica.flawed(now)) for replica in free]
        best = min(ranks)
        free = [replica for replica, rank in zip(free, ranks, strict=True) if rank == best]
    if len(free) < 2:
        return free[0] if free else None
    return least_busy(free, draw) if prompt is None else home(free, prompt)


def least_busy(replicas: Sequence[Replica], draw: Draw) -> Replica:
    """The one with the fewest choices in flight for its weight; equals are drawn by weight.

    Of many, only two drawn ones are compared: the power of two random choices (Mitzenmacher, 2001), which comes near to
    the least busy of all, and keeps gateways that do not know of each other's calls from all running to the same one.
    """
    if len(replicas) > COMPARED:
        one = drawn(replicas, draw)
        replicas = one, drawn([replica for replica in replicas if replica is not one], draw)
    loads = [replica.choices / replica.weight for replica in replicas]
    least = min(loads)
    return drawn([replica for replica, load in zip(replicas, loads, strict=True) if load == least], draw)


def drawn(replicas: Sequence[Replica], draw: Draw) -> Replica:
    """One of them at random, as likely as its weight is large."""
    if len(replicas) == 1:
        return replicas[0]
    reached = [*accumulate(replica.weight for replica in replicas)]
    at = draw() * reached[-1]
    return next((replica for replica, upto in zip(replicas, reached, strict=True) if at < upto), replicas[-1])
