"""Which replica takes the next call. Pure: time and randomness are arguments."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Collection, Sequence
from itertools import accumulate

from nproxy.upstreams.affinity import Homes
from nproxy.upstreams.replicas import Replica

COMPARED = 3
"""If there are at most so many replicas, all are compared; if more, two that are drawn."""

Draw = Callable[[], float]
"""Returns a random number from 0 up to, not including, 1."""


def standing(
    replicas: Sequence[Replica], who: object, now: float, failed: Collection[Replica] = ()
) -> Sequence[Replica]:
    """The replicas that a leg may be sent to, whether or not they have a free slot; see Replica.admits.

    If none is healthy, those that may be tried as a last resort: checks that fail everywhere may use the wrong path,
    and breakers that are open everywhere may be the work of one client. Envoy's panic threshold also disregards health
    if too few are healthy. Here breakers still limit the trials, except at servers that answer, even with errors: there
    an open breaker would not save anything. The same holds if the healthy ones are those where this leg has `failed`,
    and others would be preferred: they may have ended since they were checked, and the others may be back.
    """
    if len(replicas) == 1 and replicas[0].admits(who, now):
        return replicas
    healthy = [replica for replica in replicas if replica.admits(who, now)]
    if any(replica not in failed or not replica.flawed(now) for replica in healthy):
        return healthy
    able = [replica for replica in replicas if replica.admits(who, now, last_resort=True)]
    return able or healthy or [replica for replica in replicas if replica.answers(now)]


def all_fit(replicas: Sequence[Replica], who: object, now: float, parallel: int | None) -> bool:
    """Whether each of the replicas may take a call, and no others are preferred."""
    for replica in replicas:
        if not (replica.admits(who, now) and replica.has_room(parallel)) or replica.flawed(now):
            return False
    return True


def at_a_glance(
    replicas: Sequence[Replica], who: object, draw: Draw, now: float, parallel: int | None
) -> Replica | None:
    """The replica that `choose` would take of those `standing`, for a leg that has failed nowhere.

    Only those that are compared are looked at, so that a leg costs the same with 4 replicas as with 400. None if one of
    them may not take the call, or if others are preferred: then all must be looked at. All must have the same weight.
    """
    if (many := len(replicas)) > COMPARED:
        at, other = int(draw() * many), int(draw() * (many - 1))
        replicas = replicas[at], replicas[other + (other >= at)]
    return least_busy(replicas, draw) if all_fit(replicas, who, now, parallel) else None


def choose(
    replicas: Sequence[Replica],
    draw: Draw,
    now: float,
    *,
    parallel: int | None = None,
    failed: Collection[Replica] = (),
    prompt: bytes | None = None,
) -> Replica | None:
    """Choose the replica that takes a call, from those that may; None if none has a free slot.

    parallel: calls at once per replica; None for no limit. failed: where this leg has failed; these come last. If the
    leg would fail there again, it waits for others instead: a replica that cannot be reached is always the least busy.
    prompt: a hash that selects the prompt's home; None: the least busy replica takes the call.
    """
    if len(replicas) == 1:
        return replicas[0] if replicas[0].has_room(parallel) else None
    if failed:
        replicas = [one for one in replicas if one not in failed or not one.flawed(now)] or replicas
    free = [replica for replica in replicas if replica.has_room(parallel)]
    if len(free) > 1:
        ranks = [(replica in failed, replica.flawed(now)) for replica in free]
        best = min(ranks)
        free = [replica for replica, rank in zip(free, ranks, strict=True) if rank == best]
    if len(free) < 2:
        return free[0] if free else None
    return least_busy(free, draw) if prompt is None else Homes(free).of(prompt)


def least_busy(replicas: Sequence[Replica], draw: Draw) -> Replica:
    """The replica with the fewest choices in flight for its weight; one of several equals is drawn by weight.

    Of many replicas, only two that are drawn are compared: the power of two random choices (Mitzenmacher, 2001). This
    comes close to the least busy of all, and keeps gateways that do not know each other's calls from all choosing the
    same one.
    """
    if len(replicas) == 1:
        return replicas[0]
    if len(replicas) > COMPARED:
        one = drawn(replicas, draw)
        replicas = one, drawn([replica for replica in replicas if replica is not one], draw)
    loads = [replica.choices / replica.weight for replica in replicas]
    least = min(loads)
    return drawn([replica for replica, load in zip(replicas, loads, strict=True) if load == least], draw)


def drawn(replicas: Sequence[Replica], draw: Draw) -> Replica:
    """One of the replicas at random, with a probability proportional to its weight."""
    if len(replicas) == 1:
        return replicas[0]
    reached = [*accumulate([replica.weight for replica in replicas])]
    return replicas[bisect(reached, draw() * reached[-1], hi=len(replicas) - 1)]
