"""The admission client: where a request of this process asks for permits, waits for them, moves and returns them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import NoReturn, Protocol

from nproxy.config import Config
from nproxy.gateway.admission.accounts import MOST_KEYS
from nproxy.gateway.admission.bounds import Bounds
from nproxy.gateway.admission.grant import Grant
from nproxy.gateway.admission.known_rates import KnownRates
from nproxy.gateway.admission.memory import BODIES_SHARE, Bodies, Memory, MemoryReservation, limit_of
from nproxy.gateway.admission.messages import Admitted, Answer, Ask, Move, Refused, Returned, RoomAgain
from nproxy.gateway.admission.refusal_log import RefusalLog
from nproxy.gateway.admission.refusals import Unanswered, error_of, rate_headers, unavailable
from nproxy.gateway.admission.server import AdmissionServer, Connect, Transport
from nproxy.gateway.callers import UNLIMITED, Caller
from nproxy.openai.errors import ApiError
from nproxy.telemetry.metrics import OTHER, Metrics

ANSWER_SECONDS = 5.0
"""How long the ledger may take to answer, beyond the time that a request may wait in it: its process may hang."""
ADMITTED = "admitted"
"""The label of waits that end with an admission."""
SHED_RETRY = 2.0
"""Seconds of the Retry-After if memory is short, or the ledger does not answer."""


@dataclass(slots=True, eq=False)
class _Waiter:
    """A question to the ledger that is not answered yet."""

    key: str
    """The key of the request."""
    since: float
    """When the ledger was asked, in the loop's time."""
    answer: Admitted | Refused | None = None
    """The ledger's answer; None before it comes."""
    answered: asyncio.Future[Admitted | Refused] | None = None
    """Done with the answer; None if no task waits for it."""
    limit: asyncio.Timeout | None = None
    """Ends the wait for the answer."""


class Waited(Protocol):
    """Is told how long a request has waited for permits. admitted: whether it got them."""

    def __call__(self, seconds: float, *, admitted: bool) -> None:
        """Be told."""
        ...


def _unnoted(seconds: float, *, admitted: bool) -> None:
    pass


class AdmissionClient:
    """Asks the ledger for the requests of one process. The ledger may run in another process.

    taken, waiting: choices of this process. draining: requests that would have to wait are refused.
    """

    def __init__(self, config: Config, metrics: Metrics) -> None:
        self.taken = self.waiting = 0
        self.draining = False
        self.memory = Memory(None)
        self.bodies = Bodies(None, self._no_room)
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time
        self._refusals = RefusalLog(self._loop)
        self._waiters: dict[str, _Waiter] = {}
        self._full: dict[str, float] = {}  # keys whose requests would be refused, and their retry_after
        self._rates = KnownRates()
        self._number = 0
        self._apply_config(config)
        self._transport: Transport = AdmissionServer(Bounds.of(config), self._hear)

    def connect(self, connect: Connect) -> None:
        """Use the ledger of another process instead of an own one. Call it before the first request."""
        self._transport.close()
        self._transport = connect(self._hear)

    def reconfigure(self, config: Config) -> None:
        """Use other limits from now on."""
        self._apply_config(config)
        for waiter in self._waiters.values():
            if waiter.limit is not None and not waiter.limit.expired():
                # never sooner: a ledger in another process may not have the new limits yet
                waiter.limit.reschedule(max(waiter.limit.when() or 0.0, self._answered_by(waiter)))
        self._transport.reconfigure(Bounds.of(config))

    def _apply_config(self, config: Config) -> None:
        limits = config.limits
        self._choices = limits.per_key_choices
        self._queue_seconds = limits.queue_seconds
        self.memory.limit = limit = limit_of(config)
        self.bodies.limit = None if limit is None else int(BODIES_SHARE * limit)

    def close(self) -> None:
        """Close the way to the ledger; nothing is admitted any more."""
        self._transport.close()

    # ---- before the body is read

    def guard(self, caller: Caller) -> MemoryReservation:
        """Refuse a request at least cost if it would be refused anyway. Else return what counts the bytes of its body.

        Raises ApiError 429 or 503, and so does the reservation if the body does not fit.
        """
        self.check_memory()
        if (retry_after := self._full.get(caller.bucket)) is not None:
            self._turn_away(caller, Refused("", "queue_full", retry_after))
        if caller.rates is not UNLIMITED and (limited := self._rates.refusal(caller, self._clock())) is not None:
            self._turn_away(caller, limited)
        return MemoryReservation(self.bodies, caller.bucket)

    def _no_room(self) -> ApiError:
        return self._shed("bodies", "Too many large requests are in flight; try again later.")

    def _turn_away(self, caller: Caller, refused: Refused) -> NoReturn:
        self._metrics.queue_wait("refused").observe(0.0)
        raise self._refused(caller, refused, 1)

    def headers(self, caller: Caller) -> dict[str, str]:
        """Return the x-ratelimit headers of a caller, as far as this process knows; none if its rates are UNLIMITED.

        What is left changes when a request is admitted or refused, so they are read when it is admitted, or fails. For
        endpoints that need no permits, they are read at the edge.
        """
        return rate_headers(self._rates.levels(caller, self._clock()))

    def check_memory(self) -> None:
        """Raise ApiError 503 if memory is short. May be called in any thread."""
        if self.memory.over(self._clock()):
            raise self._shed("memory", "The gateway is short of memory; try again later.")

    def _shed(self, reason: str, message: str) -> ApiError:
        self._metrics.shed(reason).inc()
        self._count_refusal(reason)
        return unavailable(message, "overloaded", SHED_RETRY)

    # ---- permits

    async def admit(
        self,
        caller: Caller,
        upstream: str,
        choices: int,
        tokens: int = 0,
        *,
        field: str = "n",
        waited: Waited = _unnoted,
    ) -> Grant:
        """Wait for permits for so many choices at once. The grant returns them at the end of its block.

        tokens: an estimate of what will be spent. field: of the request, that asks for so many choices. waited: is
        told how long the wait was, even if it failed. Raises ApiError: 400 if the request would never fit; 429 if it
        is refused now, or waits too long; 503 if the gateway shuts down, or the ledger does not answer.
        """
        self._number += 1
        ticket = f"{self._transport.prefix}-{self._number}"
        most = self._choices if caller.choices is None else caller.choices
        waits = not self.draining
        ask = Ask(ticket, caller.bucket, upstream, choices, tokens, caller.weight, most, caller.rates, waits)
        if (levels := self._transport.at_once(ask)) is not None:
            if levels:
                self._rates.hear(caller, levels, self._clock())
            self._metrics.queue_wait(ADMITTED).observe(0.0)
            waited(0.0, admitted=True)
        else:
            began, admitted = time.monotonic(), False
            try:
                await self._waited_for(caller, ask, field)
                admitted = True
            finally:
                waited(time.monotonic() - began, admitted=admitted)
        series = self._metrics.of_key(caller.name or OTHER)
        series.requests.value += 1
        self.taken += choices
        return Grant(ask, series, self)

    async def _waited_for(self, caller: Caller, ask: Ask, field: str) -> None:
        """Ask the ledger, and wait until it admits the request. Raises ApiError if it does not."""
        try:
            answer = await self._answer(ask, ask)
        except BaseException as error:  # also if it is cancelled just after it was admitted
            self._transport.leave(ask.ticket)
            if isinstance(error, Unanswered):
                self._count_refusal("unanswered")
            raise
        if answer.levels:
            self._rates.hear(caller, answer.levels, self._clock())
        if isinstance(answer, Refused):
            raise self._refused(caller, answer, ask.choices, field)

    # ---- what grants call

    def leave(self, ask: Ask, grant: Grant) -> None:
        """Return the permits, and tell the ledger how many tokens the request owes."""
        self.taken -= ask.choices
        self._transport.leave(ask.ticket, grant.owed)

    async def move(self, ask: Ask, upstream: str) -> None:
        """Move permits to another upstream; see Grant.move. A refusal is none of the request, so it is not counted."""
        answer = await self._answer(ask, Move(ask.ticket, upstream))
        if isinstance(answer, Refused):
            raise error_of(answer, ask.choices)

    # ---- asking the ledger

    async def _answer(self, ask: Ask, message: Ask | Move) -> Admitted | Refused:
        """Send a message of a request, and wait for the answer. ask: the request. Raises Unanswered if none comes."""
        started = self._clock()
        waiter = self._waiters[ask.ticket] = _Waiter(ask.key, started)
        self.waiting += ask.choices
        outcome = "left"
        try:
            self._transport.send(message)
            if (answer := waiter.answer) is None:  # a ledger in this process may answer during send
                waiter.answered = self._loop.create_future()
                async with asyncio.timeout_at(self._answered_by(waiter)) as waiter.limit:
                    answer = await waiter.answered
            outcome = _outcome(answer)
        except TimeoutError:
            outcome = "timeout"
            raise Unanswered(SHED_RETRY) from None
        finally:
            del self._waiters[ask.ticket]
            self.waiting -= ask.choices
            self._metrics.queue_wait(outcome).observe(self._clock() - started)
        return answer

    def _answered_by(self, waiter: _Waiter) -> float:
        """The deadline of the ledger's answer, in the loop's time."""
        return waiter.since + self._queue_seconds + ANSWER_SECONDS

    def _hear(self, answer: Answer) -> None:
        """Take an answer of the ledger. Answers to requests that no longer wait are dropped."""
        if isinstance(answer, RoomAgain):
            self._full.clear()
        elif isinstance(answer, Returned):
            self._rates.correct(answer.key, answer.levels, self._clock())
        elif (waiter := self._waiters.get(answer.ticket)) is not None and waiter.answer is None:
            if isinstance(answer, Refused) and answer.full and len(self._full) < MOST_KEYS:
                self._full[waiter.key] = answer.retry_after
            waiter.answer = answer
            if waiter.answered is not None and not waiter.answered.done():
                waiter.answered.set_result(answer)

    def _refused(self, caller: Caller, refused: Refused, choices: int, field: str = "n") -> ApiError:
        self._count_refusal(refused.reason)
        if refused.reason in ("requests", "choices", "tokens"):
            self._metrics.key_limited(caller.name or OTHER, refused.reason).inc()
        return error_of(refused, choices, field)

    def _count_refusal(self, reason: str) -> None:
        self._metrics.refused(reason).inc()
        self._refusals.note(reason)


def _outcome(answer: Admitted | Refused) -> str:
    """Return the result of a wait, as a label of the metrics."""
    if isinstance(answer, Admitted):
        return ADMITTED
    return "timeout" if answer.reason == "timeout" else "refused"
