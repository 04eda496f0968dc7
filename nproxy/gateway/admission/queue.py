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

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from nproxy.gateway.admission.claims import Account, Claim


class FairQueue:
    """Claims that wait, in lanes by key and upstream: what blocks a claim also blocks those behind it in its lane.

    choices: of all claims that wait.
    """

    def __init__(self) -> None:
        self.choices = 0
        self._lanes: dict[tuple[str, str], deque[Claim]] = {}
        self._accounts: dict[str, Account] = {}
        self._virtual = 0.0
        self._last_finish = 0.0

    def add(self, claim: Claim) -> None:
        """Append a claim to the lane of its key and upstream."""
        ask = claim.ask
        lane = self._lanes.setdefault((ask.key, ask.upstream), deque())
        lane.append(claim)
        claim.arrived = self._virtual
        if len(lane) == 1:
            self._tag(claim)
        self.choices += claim.choices
        self._accounts[ask.key] = claim.account
        claim.account.waiting += claim.choices
        claim.account.claims[ask.ticket] = claim

    def remove(self, claim: Claim) -> None:
        """Remove a claim, as if it had never been there."""
        ask = claim.ask
        lane = self._lanes[ask.key, ask.upstream]
        was_head = lane[0] is claim
        lane.remove(claim)
        if not lane:
            del self._lanes[ask.key, ask.upstream]
        elif was_head:
            self._tag(lane[0])
        self.choices -= claim.choices
        claim.account.waiting -= claim.choices
        del claim.account.claims[ask.ticket]
        if not claim.account.claims:
            del self._accounts[ask.key]

    def let_in(self, claim: Claim) -> None:
        """Remove the head of a lane because it is admitted."""
        self._advance(claim)
        self.remove(claim)

    def pass_by(self, claim: Claim) -> None:
        """Note a claim that is admitted at once, as no request waits. It gets the tags that the queue would give it."""
        claim.arrived = self._virtual
        self._tag(claim)
        self._advance(claim)

    def in_order(self) -> Iterator[Claim]:
        """Yield the heads of all lanes, least start tag first; if one is admitted, its lane's next head follows."""
        heads = [(lane[0].start, lane[0].number, place) for place, lane in self._lanes.items()]
        heapify(heads)
        while heads:
            _, _, place = heappop(heads)
            claim = self._lanes[place][0]
            yield claim
            lane = self._lanes.get(place)
            if lane is not None and lane[0] is not claim:
                heappush(heads, (lane[0].start, lane[0].number, place))

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

    def _advance(self, claim: Claim) -> None:
        """Advance the finish of a claim's key, and virtual time, because the claim is admitted."""
        account, start = claim.account, claim.start
        account.finish = finish = max(account.finish, start) + claim.ask.choices / claim.ask.weight
        if finish > self._last_finish:
            self._last_finish = finish
        if start > self._virtual:
            self._virtual = start

    def _tag(self, head: Claim) -> None:
        head.start = max(head.arrived, head.account.finish)
