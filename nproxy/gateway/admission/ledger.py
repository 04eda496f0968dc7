"""The ledger: which requests hold permits, and which wait for them. Messages in, answers out; it reads no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import inf
from typing import assert_never

from nproxy.gateway.admission.accounts import Accounts
from nproxy.gateway.admission.bounds import Bounds
from nproxy.gateway.admission.claims import Account, Claim
from nproxy.gateway.admission.drain_rate import DrainRate
from nproxy.gateway.admission.messages import (
    Admitted,
    Answer,
    Ask,
    Kind,
    Leave,
    Level,
    Message,
    Move,
    Reason,
    Refused,
    Returned,
    RoomAgain,
)
from nproxy.gateway.admission.queue import FairQueue
from nproxy.gateway.admission.rates import Meters, levels_of, limits_of

LEAST_RETRY, MOST_RETRY = 1.0, 60.0
"""Bounds of the Retry-After, in seconds, if the queue is full or too slow."""


class Ledger:
    """Permits, counted in choices, with limits in total, per key and per upstream. A request gets all of its or none.

    Requests that do not fit wait in a fair queue. If the first one does not fit, the permits that become free are
    reserved for it, but only under the limit that it lacks:

    - If it waits for its key's limit, it blocks only that key.
    - If it waits for its upstream, it blocks that upstream, and its permits under the key's limit are reserved, so that
      it does not lack them once the upstream has room.
    - If it waits for the total limit, it blocks all requests.

    So no narrow request overtakes a wide one that waits under the same limit, and no request waits because of a limit
    that does not concern it.

    taken: choices in flight.
    """

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.taken = 0
        self._claims: dict[str, Claim] = {}
        self._upstreams: Counter[str] = Counter()
        self._queue = FairQueue()
        self._accounts = Accounts(self._queue.forgets)
        self._waiting: dict[str, Claim] = {}  # in the queue, oldest first
        self._moving: dict[str, Claim] = {}  # admitted, but they wait for permits of another upstream
        self._reserved = False  # all free permits are reserved for the first in the queue
        self._drained = DrainRate()
        self._told_full = self._freed = False
        self._number = 0
        self._answers: list[Answer] = []

    @property
    def waiting(self) -> int:
        """Choices that wait."""
        return self._queue.choices

    @property
    def keys(self) -> int:
        """The number of keys that have an account."""
        return len(self._accounts.by_key)

    # ---- inputs. Those that return answers return all that follow, also those to other requests.

    def at_once(self, ask: Ask, now: float) -> tuple[Level, ...] | None:
        """Admit a request that need not wait, as `receive` would; return the levels of its key's rates.

        Returns None, and admits nothing, if it exceeds a rate, if it does not fit, or if any request waits.
        """
        limits = limits_of(ask)
        if limits and self.bounds.too_narrow_for(ask) is not None:  # for a rate; `_may_pass_by` sees the other limits
            return None
        account = self._accounts.of(ask, now)
        if not self._may_pass_by(ask, account) or _exceeded(limits, account.meters, now) is not None:
            return None
        claim = self._charged(ask, account, limits, now)
        self._pass_by(claim)
        return claim.levels(now)

    def leave_at_once(self, ticket: str, tokens: int | None, now: float) -> bool:
        """End a request as `receive` would, if nothing follows for others.

        Returns False, and does nothing, if others wait, if some know of a full queue, or if what its key was charged is
        corrected, which is told to all.
        """
        claim = self._claims.get(ticket)
        if claim is None or self._waiting or self._moving or self._told_full:
            return False
        if claim.charges:
            if tokens is not None and any(charge.what == "tokens" for charge in claim.charges):
                return False
            self._settle(claim, {}, now)
        del self._claims[ticket]
        self._give_back(claim, now)
        if not self.taken:
            self._queue.rest()
        return True

    def receive(self, message: Message, now: float) -> list[Answer]:
        """Handle a message."""
        match message:
            case Ask():
                self._ask(message, now)
            case Move():
                self._move(message, now)
            case Leave():
                self._drop(message.ticket, message.tokens, now)
                self._serve(now)
            case _:
                assert_never(message)
        return self._take_answers()

    def lost(self, prefix: str, now: float) -> list[Answer]:
        """Drop all requests whose tickets begin with this prefix, because their worker is gone."""
        for ticket in [ticket for ticket in self._claims if ticket.startswith(prefix)]:
            self._drop(ticket, None, now)
        self._serve(now)
        return self._take_answers()

    def tick(self, now: float) -> list[Answer]:
        """Refuse the requests that have waited too long."""
        for waiting in (self._waiting, self._moving):
            while waiting and (claim := next(iter(waiting.values()))).since + self.bounds.seconds <= now:
                self._refuse(claim, "timeout", now)
        self._serve(now)
        return self._take_answers()

    def deadline(self) -> float | None:
        """When to call `tick`; None if no request waits."""
        if not self._waiting and not self._moving:
            return None
        oldest = [next(iter(waiting.values())).since for waiting in (self._waiting, self._moving) if waiting]
        return min(oldest) + self.bounds.seconds

    def reconfigure(self, bounds: Bounds, now: float) -> list[Answer]:
        """Use other limits. No request loses its permits; those that wait and can never fit any more are refused."""
        self.bounds = bounds
        for claim in tuple(self._waiting.values()):
            if (limit := self.bounds.too_narrow_for(claim.ask)) is not None:
                self._refuse(claim, "too_wide", now, limit=limit)
        for claim in tuple(self._moving.values()):
            if claim.choices > (limit := self.bounds.upstreams.get(claim.goal, claim.choices)):
                self._refuse(claim, "too_wide", now, limit=limit)
        self._freed = True
        self._serve(now)
        return self._take_answers()

    # ---- requests

    def _ask(self, ask: Ask, now: float) -> None:
        if (limit := self.bounds.too_narrow_for(ask)) is not None:
            self._answers.append(Refused(ask.ticket, "too_wide", limit=limit))
            return
        account = self._accounts.of(ask, now)
        if account.claims:
            self._queue.note_room(account)
        limits = limits_of(ask)
        if (exceeded := _exceeded(limits, account.meters, now)) is not None:
            levels = levels_of(account.meters, [(what, limit) for what, _, limit in limits], now)
            self._answers.append(Refused(ask.ticket, *exceeded, levels=levels))
            return
        claim = self._charged(ask, account, limits, now)
        if self._may_pass_by(ask, account):
            self._pass_by(claim)
            self._answer_admitted(claim, now)
            return
        waited = self.waiting
        self._waiting[ask.ticket] = claim
        self._queue.add(claim)
        self._serve(now)
        if ask.ticket not in self._waiting:
            return
        if not ask.waits:
            self._turn_away((claim,), "draining", now)
        elif self.bounds.seconds == 0:
            self._turn_away((claim,), "queue_full", now)
        elif (over := self.waiting - self.bounds.queue) > 0:
            self._turn_away(self._queue.longer_than(claim, over) or (claim,), "queue_full", now)
        self._freed |= self.waiting < waited

    def _charged(self, ask: Ask, account: Account, limits: Sequence[tuple[Kind, int, int]], now: float) -> Claim:
        """Record the claim of a request, and charge it to the rates that limit it."""
        self._number += 1
        claim = self._claims[ask.ticket] = Claim(ask, ask.choices, account, ask.upstream, now, self._number)
        if limits:
            meters = account.meters
            claim.charges = tuple([meters.charge(what, amount, limit, now) for what, amount, limit in limits])
        return claim

    def _pass_by(self, claim: Claim) -> None:
        """Admit a claim that fits, while no request waits."""
        self._queue.pass_by(claim.account, claim.ask)
        self._let_in(claim)

    def _move(self, move: Move, now: float) -> None:
        claim = self._claims.get(move.ticket)
        if claim is None:
            return
        self._leave_upstream(claim)
        limit = self.bounds.upstreams.get(move.upstream, claim.choices)
        if claim.choices > limit:
            self._answers.append(Refused(move.ticket, "too_wide", limit=limit))
        else:
            claim.since, claim.goal = now, move.upstream
            self._moving[move.ticket] = claim
        self._serve(now)

    def _drop(self, ticket: str, tokens: int | None, now: float) -> None:
        """Forget a request, whether it waits or holds permits. `_serve` gives away what has become free."""
        claim = self._claims.pop(ticket, None)
        if claim is None:
            return  # it was refused before its Leave arrived
        self._freed = True
        if self._waiting.pop(ticket, None) is not None:
            self._queue.remove(claim)
            self._settle(claim, {"choices": 0, "tokens": 0}, now)  # the request itself stays charged
            self._tell_returned(claim, now)
        else:
            self._moving.pop(ticket, None)
            self._give_back(claim, now)
            if claim.charges and self._settle(claim, {} if tokens is None else {"tokens": tokens}, now):
                self._tell_returned(claim, now)
        if not self.taken and not self._waiting:
            self._queue.rest()

    def _give_back(self, claim: Claim, now: float) -> None:
        """Return a claim's permits."""
        choices, account = claim.choices, claim.account
        self._leave_upstream(claim)
        self.taken -= choices
        account.inflight -= choices
        if account.claims:
            self._queue.note_room(account)
        self._drained.count(choices, now)

    def _leave_upstream(self, claim: Claim) -> None:
        if claim.upstream is not None:
            self._upstreams[claim.upstream] -= claim.choices
            claim.upstream = None

    def _settle(self, claim: Claim, amounts: Mapping[Kind, int], now: float) -> bool:
        """Settle what a request was charged: these amounts, the others as charged. Returns whether any is corrected."""
        for charge in claim.charges:
            claim.account.meters.settle(charge, amounts.get(charge.what, charge.amount), now)
        return any(charge.what in amounts for charge in claim.charges)

    def _tell_returned(self, claim: Claim, now: float) -> None:
        """Correct the levels: those reported while this request waited or ran included its charges."""
        if claim.charges:
            self._answers.append(Returned(claim.ask.key, claim.levels(now)))

    # ---- admission

    def _serve(self, now: float) -> None:
        """Admit the requests that fit, in the queue's order; before that, serve admitted requests that move."""
        stopped: set[str] = self._serve_moving(now) if self._moving else set()
        self._reserved = False
        if self._none_left() or not self._waiting:
            return
        keys_stopped: set[str] = set()
        spoken_for: Counter[str] = Counter()
        for claim in self._queue.in_order(stopped):
            ask, choices = claim.ask, claim.choices
            if ask.key in keys_stopped or not claim.account.has_room(choices, spoken_for[ask.key]):
                keys_stopped.add(ask.key)
            elif ask.upstream in stopped:
                continue
            elif not self._upstream_has(ask.upstream, choices):
                stopped.add(ask.upstream)
                spoken_for[ask.key] += choices
            elif self.taken + choices > self.bounds.inflight:
                self._reserved = True
                return
            else:
                self._queue.let_in(claim)
                del self._waiting[ask.ticket]
                self._let_in(claim)
                self._answer_admitted(claim, now)
                if self._none_left():
                    return

    def _serve_moving(self, now: float) -> set[str]:
        """Complete the moves to upstreams with room. Returns the upstreams that requests still wait to move to."""
        stopped: set[str] = set()
        for ticket, claim in tuple(self._moving.items()):
            if claim.goal in stopped or not self._upstream_has(claim.goal, claim.choices):
                stopped.add(claim.goal)
            else:
                del self._moving[ticket]
                self._arrive(claim)
                self._answer_admitted(claim, now)
        return stopped

    def _may_pass_by(self, ask: Ask, account: Account) -> bool:
        """Whether no request waits, and this one fits under each limit."""
        if self._waiting or self._moving:
            return False
        choices = ask.choices
        own = ask.most is None or account.inflight + choices <= ask.most
        return own and self.taken + choices <= self.bounds.inflight and self._upstream_has(ask.upstream, choices)

    def _let_in(self, claim: Claim) -> None:
        self.taken += claim.choices
        claim.account.inflight += claim.choices
        if claim.account.claims:
            self._queue.note_room(claim.account)
        self._arrive(claim)

    def _none_left(self) -> bool:
        """Whether no permit is left in total. It saves a walk through the queue, with the same result."""
        return self.taken >= self.bounds.inflight

    def _arrive(self, claim: Claim) -> None:
        claim.upstream = claim.goal
        self._upstreams[claim.goal] += claim.choices

    def _answer_admitted(self, claim: Claim, now: float) -> None:
        self._answers.append(Admitted(claim.ask.ticket, claim.levels(now)))

    def _upstream_has(self, upstream: str, choices: int) -> bool:
        return self._upstreams[upstream] + choices <= self.bounds.upstreams.get(upstream, inf)

    # ---- refusals

    def _turn_away(self, claims: Sequence[Claim], reason: Reason, now: float) -> None:
        """Refuse requests that may not wait, and admit those that they blocked."""
        for claim in claims:
            self._take_out(claim, reason, now)
        self._serve(now)
        for claim in claims:
            self._answer_refused(claim, reason, now)

    def _refuse(self, claim: Claim, reason: Reason, now: float, *, limit: int = 0) -> None:
        """Refuse a request that waits. Requests that it blocked are left to `_serve`."""
        self._take_out(claim, reason, now)
        self._answer_refused(claim, reason, now, limit=limit)

    def _take_out(self, claim: Claim, reason: Reason, now: float) -> None:
        """Remove a request from those that wait; return its charges.

        After a timeout, the request itself stays charged, but not its choices and tokens.
        """
        ticket = claim.ask.ticket
        if self._moving.pop(ticket, None) is not None:
            return
        del self._waiting[ticket], self._claims[ticket]
        self._queue.remove(claim)
        nothing: dict[Kind, int] = {"choices": 0, "tokens": 0}
        if reason == "timeout":
            self._freed = True
        else:
            nothing["requests"] = 0
        self._settle(claim, nothing, now)
        if reason != "queue_full" or claim.number < self._number:  # else no levels that include it were reported
            self._tell_returned(claim, now)

    def _answer_refused(self, claim: Claim, reason: Reason, now: float, *, limit: int = 0) -> None:
        ask = claim.ask
        full = reason == "queue_full" and self._full_for(claim)
        self._told_full |= full
        levels = claim.levels(now)
        retry_after = self._retry_after(claim.choices, now)
        self._answers.append(Refused(ask.ticket, reason, retry_after, limit, full, levels))

    def _full_for(self, claim: Claim) -> bool:
        """Whether a request of this key for one choice would be refused as well, at any upstream."""
        account = claim.account
        must_wait = self._reserved or self._none_left() or not account.has_room(1)
        none_longer = self._queue.longest() <= (account.waiting + 1) / account.weight
        return must_wait and (self.bounds.seconds == 0 or (self.waiting >= self.bounds.queue and none_longer))

    def _retry_after(self, choices: int, now: float) -> float:
        """Estimate the seconds until all that wait, and this request, are admitted at the recent rate."""
        pace = self._drained.per_second(now)
        seconds = (self.waiting + choices) / pace if pace else self.bounds.seconds
        return min(max(seconds, LEAST_RETRY), MOST_RETRY)

    def _take_answers(self) -> list[Answer]:
        if self._told_full and self._freed:
            self._told_full = False
            self._answers.append(RoomAgain())
        self._freed = False
        answers, self._answers = self._answers, []
        return answers


def _exceeded(limits: Sequence[tuple[Kind, int, int]], meters: Meters, now: float) -> tuple[Kind, float] | None:
    """Return the first rate that a request exceeds, and the seconds until it does not; None if there is none."""
    for what, amount, limit in limits:
        if wait := meters.wait(what, amount, limit, now):
            return what, wait
    return None
