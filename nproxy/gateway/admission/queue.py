"""The queue: start-time fair queueing over keys, counted in choices.

The algorithm is that of Goyal, Vin and Cheng, "Start-time Fair Queuing" (SIGCOMM 1996), for a server that has many
requests in flight as in Jin, Chase and Kaur, "Interposed Proportional Sharing" (SIGMETRICS 2004), SFQ(D). Each request
has a start tag in virtual time: the later of its arrival and the finish of its key's previous request. A request
finishes (choices / weight of the key) after its start. The least start tag is admitted first, and virtual time is the
tag of the last admitted request. While two keys f and m both wait, the choices that they are admitted for, over their
weights, differ by no more than one widest request of f and one of m.

One thing differs: a request gets its tag when it becomes the head of its lane. So requests that leave the queue have no
effect on the tags of those behind them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Container, Iterator
from heapq import heapify, heappop, heappush

from nproxy.gateway.admission.claims import Account, Claim
from nproxy.gateway.admission.messages import Ask

_Entry = tuple[float, int, Claim]
"""The start tag and the number of a claim, which no other shares, and the claim."""


class FairQueue:
    """Claims that wait, in lanes by key and upstream: what blocks a claim also blocks those behind it in its lane.

    choices: of all claims that wait.
    """

    def __init__(self) -> None:
        self.choices = 0
        self._accounts: dict[str, Account] = {}  # of the keys that wait
        self._heads: dict[str, list[_Entry]] = {}  # by upstream, in order: of each lane, unless its key's limit is full
        self._virtual = 0.0
        self._last_finish = 0.0

    def add(self, claim: Claim) -> None:
        """Append a claim to the lane of its key and upstream."""
        account, ask = claim.account, claim.ask
        claim.arrived = self._virtual
        if not account.claims:
            account.full = not account.has_room(1)
        lane = account.lanes.get(ask.upstream)
        if lane is None:
            account.lanes[ask.upstream] = deque((claim,))
            self._lead(claim)
        else:
            lane.append(claim)
        self.choices += claim.choices
        self._accounts[ask.key] = account
        account.waiting += claim.choices
        account.claims[ask.ticket] = claim

    def remove(self, claim: Claim) -> None:
        """Remove a claim, as if it had never been there."""
        account, ask = claim.account, claim.ask
        lane = account.lanes[ask.upstream]
        if lane[0] is not claim:
            lane.remove(claim)
        else:
            if not account.full:
                self._withdraw(claim)
            lane.popleft()
            if lane:
                self._lead(lane[0])
            else:
                del account.lanes[ask.upstream]
        self.choices -= claim.choices
        account.waiting -= claim.choices
        del account.claims[ask.ticket]
        if not account.claims:
            del self._accounts[ask.key]

    def note_room(self, account: Account) -> None:
        """Note that a key with claims that wait has more or fewer choices in flight, or another limit."""
        full = not account.has_room(1)
        if full != account.full:
            account.full = full
            for lane in account.lanes.values():
                if full:
                    self._withdraw(lane[0])
                else:
                    self._enter(lane[0])

    def let_in(self, claim: Claim) -> None:
        """Remove the head of a lane because it is admitted."""
        self._advance(claim.account, claim.ask, claim.start)
        self.remove(claim)

    def pass_by(self, account: Account, ask: Ask) -> None:
        """Note a request that is admitted at once, as none waits. It starts when it would if it had to wait."""
        arrived, finish = self._virtual, account.finish
        self._advance(account, ask, arrived if arrived > finish else finish)

    def in_order(self, stopped: Container[str]) -> Iterator[Claim]:
        """Yield the heads of lanes, least start tag first; if one is admitted, its lane's next head follows.

        Those of keys whose limit is full are left out, and so are those for upstreams in `stopped`, which may grow
        meanwhile, unless a later head of their key is yielded. So a walk does not grow with those that only wait.
        """
        reached: dict[str, _Entry] = {}
        heap = [entries[0] for entries in self._heads.values()]
        heapify(heap)
        while heap:
            entry = heappop(heap)
            claim = entry[2]
            ask = claim.ask
            if ask.upstream in stopped:
                continue
            if len(claim.account.lanes) > 1:
                yield from _passed_over(claim.account, stopped, reached.get(ask.key), entry)
                reached[ask.key] = entry
            yield claim
            entries = self._heads.get(ask.upstream, ())
            if (following := bisect_right(entries, entry)) < len(entries):
                heappush(heap, entries[following])

    def longer_than(self, claim: Claim, choices: int) -> list[Claim]:
        """Return the claims to drop to make room for so many choices: the youngest of the key with the longest backlog.

        That key's backlog must stay longer than the one of the claim's own key, with the claim counted; else nothing is
        returned. (Dropping from the longest queue: Suter, Lakshman, Stiliadis and Choudhury, "Buffer Management
        Schemes", JSAC 1999.)
        """
        longest = max(self._accounts.values(), key=lambda account: account.backlog)
        own, left, found = claim.account.backlog, longest.waiting, list[Claim]()
        for young in reversed(longest.claims.values()):
            if left / longest.weight <= own:
                break
            found.append(young)
            left -= young.choices
            choices -= young.choices
            if choices <= 0:
                return found
        return []

    def longest(self) -> float:
        """Return the longest backlog of any key; 0 if no request waits."""
        return max((account.backlog for account in self._accounts.values()), default=0.0)

    def rest(self) -> None:
        """Make all keys equal again, because nothing waits and nothing is in flight."""
        self._virtual = self._last_finish

    def forgets(self, account: Account) -> bool:
        """Whether the queue needs no account of a key: it does not wait, and is not ahead of virtual time."""
        return not account.claims and account.finish <= self._virtual

    def _advance(self, account: Account, ask: Ask, start: float) -> None:
        """Advance the finish of a key, and virtual time, because a request with this start tag is admitted."""
        begun = account.finish if account.finish > start else start
        account.finish = finish = begun + ask.choices / ask.weight
        if finish > self._last_finish:
            self._last_finish = finish
        if start > self._virtual:
            self._virtual = start

    def _lead(self, head: Claim) -> None:
        """Note that a claim is now the head of its lane."""
        self._tag(head)
        if not head.account.full:
            self._enter(head)

    def _enter(self, head: Claim) -> None:
        insort(self._heads.setdefault(head.ask.upstream, []), _entry(head))

    def _withdraw(self, head: Claim) -> None:
        entries = self._heads[head.ask.upstream]
        del entries[bisect_left(entries, _entry(head))]
        if not entries:
            del self._heads[head.ask.upstream]

    def _tag(self, head: Claim) -> None:
        arrived, finish = head.arrived, head.account.finish
        head.start = arrived if arrived > finish else finish


def _entry(head: Claim) -> _Entry:
    return head.start, head.number, head


def _passed_over(account: Account, stopped: Container[str], since: _Entry | None, to: _Entry) -> list[Claim]:
    """Return a key's heads, for upstreams that are stopped, between two entries of its own."""
    entries = [_entry(lane[0]) for upstream, lane in account.lanes.items() if upstream in stopped]
    return [entry[2] for entry in sorted(entries) if (since is None or entry > since) and entry < to]
