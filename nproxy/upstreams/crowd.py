"""Calls that a server turns away for want of room: who waits until others have left some, and who goes next.

How many calls a server takes at once is not known, and others may use the same room. So nothing is counted but what
happens: one that waits is let in as a call ends that was being answered, and now and then without such an end, to find
out whether there is more room (`pace.py`).
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import inf
from weakref import WeakSet

from nproxy.choices.events import Room
from nproxy.choices.retry import LONGEST_RETRY_AFTER_SECONDS
from nproxy.upstreams.balancing import Draw
from nproxy.upstreams.commons import Apart, Commons
from nproxy.upstreams.elsewhere import Elsewhere, What
from nproxy.upstreams.full import FullReplicas
from nproxy.upstreams.kin import Crowded, Kin, Place
from nproxy.upstreams.lateness import LATE_SECONDS, LATEST, Opening
from nproxy.upstreams.pace import Pace
from nproxy.upstreams.permits import ROUNDING
from nproxy.upstreams.refusals import OFTEN, Refusals
from nproxy.upstreams.replicas import Replica
from nproxy.upstreams.visit import LetIn, Visit

JUST_NOW_SECONDS = 0.5
"""A server may still count a call that ended so long ago; longer than all LATE_SECONDS together."""
OVER_SECONDS = 1.0
"""Where nobody waits and nobody was turned away for so long, the rush is over."""
AGAIN_SECONDS = 2.0
"""How soon one is looked at again that would be impatient, were it not for its siblings."""


@dataclass(slots=True, eq=False)
class _Waiter:
    visit: Visit
    fares: Crowded
    future: asyncio.Future[None]
    patience: asyncio.TimerHandle | None = None

    @property
    def place(self) -> Place:
        return self.fares.places[self.visit.leg]


class Crowd:
    """The legs of one account that wait for room. Those that come later wait, too.

    Requests take turns: a leg comes behind as many of each other request as are before it of its own (start-time fair
    queueing: Goyal, Vin and Cheng, 1996), so that one choice is not kept waiting by a hundred.

    waiting: in their order. calls: in flight, or about to be, of this account. draw: a random number from 0 up to 1.
    clock: seconds that never go back. beside: whether there is a replica in order beside some. patience: seconds that a
    request waits of which nothing is answered meanwhile; then it tries once more, and is told what it hears. model:
    that they ask for. commons: what it shares with the other accounts. elsewhere: the other processes of this gateway,
    None where there are none.
    """

    def __init__(
        self,
        model: str | None,
        commons: Commons,
        draw: Draw,
        clock: Callable[[], float],
        beside: Callable[[Collection[Replica]], bool],
        patience: Callable[[], float],
    ) -> None:
        self.waiting: list[_Waiter] = []
        self.calls = 0
        self.elsewhere: Elsewhere | None = None
        self._model = model
        self._commons = commons
        self._apart = Apart()
        self._draw = draw
        self._clock = clock
        self._patience = patience
        self._full = FullReplicas(beside)
        self._refused_at = -inf
        self._turn = 0  # of the last one that was let in
        self._came = 0  # legs, to wait
        self._timer: asyncio.TimerHandle | None = None
        self._armed_for = 0.0  # seconds, but for chance
        self._beside = beside
        self._pace = Pace()
        self._refusals = Refusals()
        self._begun = 0  # calls
        self._answered_at = -inf
        self._openings: WeakSet[Opening] = WeakSet()  # that somebody comes for, or is to: they end with the last one
        self._waits_behind = 0  # so many will be let in, some time behind an end

    def begins(self, visit: Visit) -> None:
        """A call is about to be made."""
        self.calls += 1
        self._commons.calls += 1
        self._begun = visit.number = self._begun + 1

    async def turn(self, visit: Visit) -> None:
        """Wait to be let in, which counts as a call. One that was turned away again has the place that it had."""
        kin, leg = visit.kin, visit.leg
        fares = kin.crowded = kin.crowded or Crowded()
        if leg not in fares.places:
            self._came += 1
            last, _ = max(fares.places.values(), default=(0, 0))
            fares.places[leg] = max(self._turn, last) + 1, self._came
        fares.since = fares.since or self._clock()
        fares.waiting += 1
        waiter = _Waiter(visit, fares, asyncio.get_running_loop().create_future())
        insort(self.waiting, waiter, key=lambda one: one.place)
        if len(self.waiting) == 1:
            self._tell_waiting()
        self._bear(waiter, self._bears(kin))
        if self._timer is None or not self._in_flight():
            self._arm()
        try:
            await waiter.future
        except asyncio.CancelledError:
            if waiter in self.waiting:
                self._waits_no_more(waiter)
            else:
                self.gone(visit)  # let in in the very moment of the cancellation
            raise
        finally:
            fares.waiting -= 1
            if waiter.patience is not None:
                waiter.patience.cancel()

    def refused(self, visit: Visit, replica: Replica, wait: float | None, *, sure: bool) -> Room:
        """Take that a call was turned away, which still counts; gives where there may be room.

        wait: seconds that the server asks for. sure: it says that it is about room. Else it is taken for another fault
        unless it comes again.
        """
        now = self._clock()
        for opening in self._openings:
            opening.beside -= visit.number <= opening.since
        visit.own = self._refusals.note_refused(visit, self._begun) and self._waits_another(visit.kin)
        visit.odd = visit.own or (self._refusals.in_a_row == 1 and not sure)
        if wait is not None and wait > LONGEST_RETRY_AFTER_SECONDS and not self._full.another_before_long(replica, now):
            visit.room = ""
            return ""
        if not visit.odd:
            self._is_full(visit, replica, wait, now)
        else:
            self._full.note_refused(replica, now)
        if visit.odd and visit.why == "try":
            self._pace.forget_try()
        visit.room = room = self._where(visit, now, sure=sure)
        return room

    def _where(self, visit: Visit, now: float, *, sure: bool) -> Room:
        """Where there may be room for one that was turned away.

        It is waited for where calls of this account are being answered, or were of late: others, of whom nothing is
        known here, may be all that is in the way. And where others wait and find out. Not by a request that has lost
        its patience.
        """
        kin, why = visit.kin, visit.why
        if visit.odd and not why:
            return ""
        if not why and self._beside(self._full if sure else kin.avoided(visit.leg)):
            return "elsewhere"
        if kin.beside(visit.leg) or now - kin.served_at < JUST_NOW_SECONDS:
            return "siblings"
        if self._bears(kin) <= ROUNDING or (kin.crowded is not None and kin.crowded.own >= OFTEN):
            return ""
        latest = visit.opening is not None and visit.opening.late == LATEST
        found_out = why == "try" or latest or self._is_guest(visit) or not (why or self.waiting)
        answers = kin.served_at > -inf or now - self._last_answer(now) < self._patience()
        return "others" if answers or self._in_flight() > 1 or not found_out else ""

    def _last_answer(self, now: float) -> float:
        """When the server showed last that it answers such calls, as far as is known."""
        return self._answered_at if self._apart.believed(now) else max(self._answered_at, self._commons.answered_at)

    def _is_guest(self, visit: Visit) -> bool:
        """Whether it came behind the end of another account's call."""
        return visit.opening is not None and visit.opening.host is not self

    def _is_full(self, visit: Visit, replica: Replica, wait: float | None, now: float) -> None:
        """Take a refusal for one for want of room: what it says of the replica, and who comes next for all that.

        A wish is kept by those who would find out. By those who come behind an end, once that was in vain for several.
        """
        why, opening, guest = visit.why, visit.opening, self._is_guest(visit)
        refused_at = self._refused_at if self._apart.believed(now) else self._commons.refused_at
        if not self.waiting and not why and now - refused_at > OVER_SECONDS:
            self._pace.begins()
            self._full.forget(now)
        self._refused_at = now
        invited = opening is not None and not opening.left_elsewhere
        self._commons.note_refused(self, replica, now, invited=invited)
        full = self._full.note_full(replica, now, wait)
        in_vain = opening is not None and not opening.host.taken(opening, guest=guest)
        latest = opening is not None and opening.late == LATEST
        idle = self.calls == 1 and not guest
        if wait is not None and (idle or (in_vain and latest and self._refusals.several)):
            full.not_before = full.no_try_before
        self._pace.note_full(tried=why == "try")
        if why == "try":
            self._disarm()
        elif opening is not None and in_vain:
            if guest and opening.first:
                self._apart.note_refused(now)
            stays, tells = max(full.not_before - now, 0.0), not guest or self._apart.disproved
            if opening.lateness.note_refused(opening, now, stays=stays, tells=tells):
                opening.host.comes(opening)
        self._arm()

    def taken(self, opening: Opening, *, guest: bool) -> bool:
        """Whether, as one that came is refused, more calls are in flight than there were when another one ended."""
        return self.calls - (not guest) > opening.beside

    def comes(self, opening: Opening) -> None:
        """Let the next one in as late as it is to come."""
        if not opening.late:
            self._invite(opening)
            return
        self._waits_behind += 1
        asyncio.get_running_loop().call_later(LATE_SECONDS[opening.late], self._comes_now, opening)

    def _comes_now(self, opening: Opening) -> None:
        self._waits_behind -= 1
        self._invite(opening)
        self._leave_nobody_behind()

    def _invite(self, opening: Opening) -> None:
        if opening.left_elsewhere:
            self._next("end", opening.replica, opening)
        else:
            self._commons.invite(opening)

    def invited(self, opening: Opening) -> bool:
        """Let one in for the room that a call leaves, be it another account's; False where none comes."""
        replica = opening.replica
        if opening.host is not self:
            may = not self._apart.believed(self._clock()) and replica.serves(self._model)
            return may and self._next("end", replica, opening)
        waits_here = any(not one.future.done() for one in self.waiting)
        if self.elsewhere is not None and self.elsewhere.takes(replica.label, self._clock(), waits_here=waits_here):
            return True
        return self._next("end", replica, opening)

    def left(self, visit: Visit, replica: Replica) -> None:
        """A call is over: let the next one in where it has left room, or where there is nobody to leave any."""
        self._one_less()
        if visit.room is None:
            self._ended(visit, replica)
        elif visit.odd:
            self._pass_on(visit, visit.why or "end", but=visit.kin if visit.own else None)
        elif not (self._in_flight() or visit.room):
            self._next("try")
        self._leave_nobody_behind()

    def _one_less(self) -> None:
        self.calls -= 1
        self._commons.calls -= 1

    def _in_flight(self) -> int:
        """Calls that leave room when they end, as far as is known."""
        return self.calls if self._apart.believed(self._clock()) else self._commons.calls

    def _leave_nobody_behind(self) -> None:
        """Where nobody is in flight, no end lets in those who wait: they find out soon."""
        self._commons.leave_nobody_behind()
        if self.waiting and not self._in_flight():
            self._arm()

    def left_alone(self) -> None:
        """No call of any account is in flight."""
        self._arm()

    def _ended(self, visit: Visit, replica: Replica) -> None:
        """A call is over that was not turned away."""
        if self._refusals.in_a_row:
            self._refusals.note_end()
        now = self._clock()
        if visit.kin.crowded is not None:
            visit.kin.crowded.since = now if visit.kin.crowded.waiting else None
        if visit.end == "broken":
            return
        if visit.end:
            self._answered_at = self._commons.answered_at = now
            if self.elsewhere is not None:
                self.elsewhere.tell_answers(now)
            if visit.end == "whole":
                visit.kin.served_at = now
        if not self._full and not self._commons.waiting:
            return  # as nearly always
        if visit.end:
            self._was_answered(visit, now)
        lateness = self._commons.lateness(replica)
        opening = Opening(self, replica, lateness, lateness.late, self._begun, self.calls)
        self._openings.add(opening)
        self.comes(opening)
        if self._pace.grows:
            self._next("try", replica)

    def _was_answered(self, visit: Visit, now: float) -> None:
        """Take what that says of how long answers take, of the room, and of how late that comes."""
        self._refusals.note_answer(visit)
        if visit.why:
            self._pace.note_answer(now - visit.began, tried=visit.why == "try")
            if self._timer is not None and self._pace.pause(idle=False) < self._armed_for:
                self._arm()
        if visit.opening is not None:
            if self._is_guest(visit):
                self._apart.note_served()
            visit.opening.lateness.note_served(visit.opening, now)

    def replaced(self, there: Collection[Replica]) -> None:
        """There are other replicas now than there were."""
        self._full.keep(there)

    def widened(self) -> None:
        """There may be more room than there was: find out at once, and on as long as there is."""
        self._pace.hurry()
        self._disarm()
        self._arm()

    def gone(self, visit: Visit) -> None:
        """One that was to make a call does not."""
        self._one_less()
        if visit.why:
            self._pass_on(visit, visit.why)
        self._leave_nobody_behind()

    def _pass_on(self, visit: Visit, why: LetIn, but: Kin | None = None) -> None:
        """Let another one in instead. but: none of this request's."""
        if visit.opening is not None and self._is_guest(visit):
            self._commons.invite(visit.opening)
        else:
            self._next(why, None, visit.opening, but)

    def _next(
        self, why: LetIn, replica: Replica | None = None, opening: Opening | None = None, but: Kin | None = None
    ) -> bool:
        """Let one in, unless the server asked for a pause; False where nobody comes.

        replica: where there is room now, where that is known. but: none of this request's.
        """
        waiter = self._first(opening, but)
        if waiter is None or not self._full.may_be_entered(replica, self._clock()):
            return False
        waiter.visit.opening = opening
        self._let_in(waiter, why, replica)
        return True

    def _first(self, opening: Opening | None, but: Kin | None) -> _Waiter | None:
        """The next one that is not about to leave, and lets nobody go before it; of those that do, the first.

        Who has just been turned away behind an end lets another one find out whether its room comes later.
        """
        polite = None
        for waiter in self.waiting:
            if waiter.future.done() or waiter.visit.kin is but:
                continue
            another = opening is None or opening.last is not waiter.visit.kin
            if another and waiter.fares.after <= self._begun:
                return waiter
            polite = polite or waiter
        return polite

    def _waits_another(self, kin: Kin) -> bool:
        return any(one.visit.kin is not kin and not one.future.done() for one in self.waiting)

    def _who_finds_out(self) -> _Waiter | None:
        """The first of those that have done so most seldom."""
        return min(
            (one for one in self.waiting if not one.future.done()), key=lambda one: one.fares.tried, default=None
        )

    def _waits_no_more(self, waiter: _Waiter) -> None:
        self.waiting.remove(waiter)
        if not self.waiting:
            self._tell_waiting()

    def _tell_waiting(self) -> None:
        """Tell the other accounts, and processes, whether some wait here."""
        waits, elsewhere = bool(self.waiting), self.elsewhere
        self._commons.note_waiting(self, waits=waits or (elsewhere is not None and elsewhere.waits(self._clock())))
        if elsewhere is not None:
            elsewhere.tell_waiting(waits=waits)

    def others_are_next(self) -> bool:
        """Whether who comes now waits, as other processes do."""
        elsewhere = self.elsewhere
        return elsewhere is not None and elsewhere.is_next(self._clock(), calls=self.calls)

    def hear(self, what: What, process: str, replica: Replica | None) -> None:
        """Take what another process tells of the same account. replica: the one that has room."""
        now = self._clock()
        if what == "answers":
            self._answered_at = now
        elif what == "room":
            if replica is not None and self.waiting:
                lateness = self._commons.lateness(replica)
                opening = Opening(self, replica, lateness, lateness.late, self._begun, self.calls, left_elsewhere=True)
                self._openings.add(opening)
                self._next("end", replica, opening)
        elif self.elsewhere is not None:
            self.elsewhere.hear(what, process, now)
            self._commons.note_waiting(self, waits=bool(self.waiting) or self.elsewhere.waits(now))

    def remind(self) -> None:
        """Tell other processes again that some wait here, or that calls are being answered."""
        if self.elsewhere is not None and self.waiting:
            self.elsewhere.tell_waiting(waits=True)
        if self.elsewhere is not None and self.calls:
            self.elsewhere.tell_answers(self._clock())

    def _let_in(self, waiter: _Waiter, why: LetIn, replica: Replica | None = None) -> None:
        self._waits_no_more(waiter)
        self.begins(waiter.visit)
        self._turn = max(self._turn, waiter.place[0])
        visit = waiter.visit
        if visit.opening is not None:
            visit.opening.last = visit.kin
        visit.why, visit.began = why, self._clock()
        asked = self._full.next_asked(visit.began) if replica is None else replica
        visit.kin.full[visit.leg] = self._full.but(asked)
        waiter.future.set_result(None)

    def _arm(self) -> None:
        """Have the next one find out after a pause, and no sooner than the server said."""
        loop = asyncio.get_running_loop()
        pause = self._pace.pause(idle=not (self._in_flight() or self._waits_behind))
        if not self._apart.believed(self._clock()):
            pause *= max(self._commons.waiting, 1)  # the others find out, too
        seconds = max(pause * (0.5 + self._draw()), self._full.no_try_before - self._clock())
        if self._timer is None or self._timer.when() > loop.time() + seconds:
            self._disarm()
            self._timer, self._armed_for = loop.call_later(seconds, self._try), pause

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None

    def _try(self) -> None:
        self._timer = None
        is_about_to_come = self._waits_behind and not self._in_flight()  # who would find its place taken
        if is_about_to_come or self._clock() < self._full.no_try_before - ROUNDING:
            self._arm()
            return
        if (waiter := self._who_finds_out()) is not None:
            if self._in_flight():
                self._pace.note_try()
            self._let_in(waiter, "try")
            self._arm()

    def _bears(self, kin: Kin) -> float:
        """Seconds that a request waits still, of which nothing is being answered."""
        now = self._clock()
        since = None if kin.crowded is None else kin.crowded.since
        return (since or now) + self._patience() - now

    def _bear(self, waiter: _Waiter, seconds: float) -> None:
        waiter.patience = asyncio.get_running_loop().call_later(seconds, self._impatient, waiter)

    def _impatient(self, waiter: _Waiter) -> None:
        """A request of which nothing is being answered does not wait for ever: the first of its legs finds out."""
        if waiter not in self.waiting or waiter.future.done():
            return
        kin = waiter.visit.kin
        first = next(one for one in self.waiting if one.visit.kin is kin)
        if (left := self._bears(kin)) > ROUNDING:
            self._bear(waiter, left)
        elif waiter is first and not kin.beside(waiter.visit.leg):
            self._let_in(waiter, "try")
        else:
            self._bear(waiter, AGAIN_SECONDS)
