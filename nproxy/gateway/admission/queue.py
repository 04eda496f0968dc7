"""The queue: start-time fair queueing over keys, counted in choices.

Goyal, Vin and Cheng, "Start-time Fair Queuing" (SIGCOMM 1996), for a server that has many requests at once as in Jin,
Chase and Kaur, "Interposed Proportional Sharing" (SIGMETRICS 2004), SFQ(D). Each request has a start tag in virtual
time, the later of when it came and when its key's last one was finished, which is its choices over the key's weight
after its start; the least tag goes first, and virtual time is the tag of what was let in last. While two keys f and m
both wait, what they are let in, over their weights, differs by no more than one widest request of f and one of m.

One thing differs: a request gets its tag when it comes to the head of its lane, so that what leaves the queue leaves no
trace in the tags of those behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from nproxy.gateway.admission.claims import Account, Claim


class FairQueue:
    """Claims that wait, in lanes by key and upstream: what stops one stops those behind it in its lane."""

    def __init__(self) -> None:
        self.choices = 0
        self._lanes: dict[tuple[str, str], deque[Claim]] = {}
        self._accounts: dict[str, Account] = {}
        self._virtual = 0.0
        self._last_finish = 0.0

    def add(self, claim: Claim) -> None:
        """Put a claim behind those of its key for the same upstream."""
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
        """Take a claim out, as if it had never been there."""
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
        """Take the head of a lane out: it has been let in."""
        self._advance(claim)
        self.remove(claim)

    def pass_by(self, claim: Claim) -> None:
        """Let a claim in at once where nobody waits: it has the tags that it would have had in the queue."""
        claim.arrived = self._virtual
        self._tag(claim)
        self._advance(claim)

    def in_order(self) -> Iterator[Claim]:
        """The heads of all lanes, the least tag first; behind one that is let in meanwhile, the next of its lane."""
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
        """Who makes room for so many choices: the youngest of the key that waits with most, for its weight.

        Its backlog must be longer than that of the claim's own key, the claim counted; else nobody. (Dropping from the
        longest queue: Suter, Lakshman, Stiliadis and Choudhury, "Buffer Management Schemes", JSAC 1999.)
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
        """The longest backlog of any key."""
        return max((account.backlog for account in self._accounts.values()), default=0.0)

    def rest(self) -> None:
        """Nothing waits and nothing is in flight: nobody is ahead of anybody."""
        self._virtual = self._last_finish

    def forgets(self, account: Account) -> bool:
        """Whether a key that does not wait is ahead of nobody, so that nothing need be remembered of it."""
        return not account.claims and account.finish <= self._virtual

    def _advance(self, claim: Claim) -> None:
        """A claim is let in: so far is its key, and virtual time."""
        account, start = claim.account, claim.start
        account.finish = finish = max(account.finish, start) + claim.ask.choices / claim.ask.weight
        if finish > self._last_finish:
            self._last_finish = finish
        if start > self._virtual:
            self._virtual = start

    def _tag(self, head: Claim) -> None:
        head.start = max(head.arrived, head.account.finish)
