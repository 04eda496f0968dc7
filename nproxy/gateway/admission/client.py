"""The desk: where a request of this process asks for its permits, waits for them, moves them and gives them back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import NoReturn

from nproxy.config import Config
from nproxy.gateway.admission.bounds import Bounds
from nproxy.gateway.admission.grant import Grant
from nproxy.gateway.admission.known_rates import KnownRates
from nproxy.gateway.admission.memory import BODIES_SHARE, Bodies, Memory, MemoryFull, MemoryReservation, limit_of
from nproxy.gateway.admission.messages import Admitted, Answer, Ask, Leave, Move, Refused, Returned, Room
from nproxy.gateway.admission.refusals import Unanswered, error_of, rate_headers, unavailable
from nproxy.gateway.admission.server import AdmissionServer, Connect, Transport
from nproxy.gateway.callers import UNLIMITED, Caller, Rates
from nproxy.openai.errors import ApiError
from nproxy.telemetry.metrics import OTHER, Metrics

ANSWER_SECONDS = 5.0
"""How long a ledger may take to answer, besides the time that a request may wait there: its process may stand still."""
ADMITTED = "admitted"
"""What most waits come to, for the metrics."""
SHED_RETRY = 2.0
"""Seconds that a client is told to wait where memory is short."""


@dataclass(slots=True, eq=False)
class _Waiter:
    """answer: what the ledger said. told: that it did, where somebody waits for it, until limit. since: when it was
    asked, in the loop's time.
    """

    key: str
    since: float
    answer: Admitted | Refused | None = None
    told: asyncio.Future[Admitted | Refused] | None = None
    limit: asyncio.Timeout | None = None


class AdmissionClient:
    """One for each process; the ledger behind it may be another's.

    taken, waiting: choices of this process. draining: who would have to wait is refused.
    """

    def __init__(self, config: Config, metrics: Metrics) -> None:
        self.taken = self.waiting = 0
        self.draining = False
        self.memory = Memory(None)
        self.bodies = Bodies(None)
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._clock = self._loop.time
        self._waiters: dict[str, _Waiter] = {}
        self._full: dict[str, float] = {}  # keys that need not ask, and when they may try again
        self._rates = KnownRates()
        self._number = 0
        self._take(config)
        self._transport: Transport = AdmissionServer(Bounds.of(config), self._hear)

    def connect(self, connect: Connect) -> None:
        """Ask another ledger than one of this process's own. Before the first request."""
        self._transport.close()
        self._transport = connect(self._hear)

    def reconfigure(self, config: Config) -> None:
        """Other limits from now on."""
        self._take(config)
        for waiter in self._waiters.values():
            if waiter.limit is not None and not waiter.limit.expired():
                # never sooner: a ledger elsewhere may not know of it yet
                waiter.limit.reschedule(max(waiter.limit.when() or 0.0, self._answered_by(waiter)))
        self._transport.reconfigure(Bounds.of(config))

    def _take(self, config: Config) -> None:
        limits = config.limits
        self._choices = limits.per_key_choices
        self._queue_seconds = limits.queue_seconds
        for_all = Rates(limits.requests_per_minute, limits.choices_per_minute, limits.tokens_per_minute)
        self._rates.for_all = UNLIMITED if for_all == UNLIMITED else for_all
        self.memory.limit = limit = limit_of(config)
        self.bodies.limit = None if limit is None else int(BODIES_SHARE * limit)

    def close(self) -> None:
        """Let nobody in any more."""
        self._transport.close()

    # ---- at the door, before anything is read

    def guard(self, caller: Caller) -> AdmissionGuard:
        """Turn away whom nothing could be done for, at the least cost; else count the body while the block runs.

        Raises ApiError 429 or 503.
        """
        self.check_memory()
        if (retry_after := self._full.get(caller.bucket)) is not None:
            self._turn_away(caller, Refused("", "queue_full", retry_after))
        limits = self._rates.limits(caller) is not UNLIMITED
        if limits and (limited := self._rates.refusal(caller, self._clock())) is not None:
            self._turn_away(caller, limited)
        return AdmissionGuard(self, self.bodies.hold())

    def no_room(self) -> ApiError:
        """What a request is told whose body there is no room for."""
        return self._shed("bodies", "Too many large requests are in flight; try again later.")

    def _turn_away(self, caller: Caller, refused: Refused) -> NoReturn:
        self._metrics.queue_wait("refused").observe(0.0)
        raise self._refused(caller, refused, 1)

    def headers(self, caller: Caller) -> dict[str, str]:
        """How far a key is with its rates, as far as this process knows; nothing where it has none or is not known."""
        if not caller.bucket or self._rates.limits(caller) is UNLIMITED:
            return {}
        return rate_headers(self._rates.levels(caller, self._clock()))

    def check_memory(self) -> None:
        """Raise ApiError 503 where memory is short. In any thread."""
        if self.memory.over(self._clock()):
            raise self._shed("memory", "The gateway is short of memory; try again later.")

    def _shed(self, reason: str, message: str) -> ApiError:
        self._metrics.shed(reason).inc()
        self._metrics.refused(reason).inc()
        return unavailable(message, "overloaded", SHED_RETRY)

    # ---- permits

    def counts_tokens(self, caller: Caller) -> bool:
        """Whether a rate of tokens limits a caller, so that a guess of them is of use."""
        return self._rates.limits(caller).tokens is not None

    async def admit(self, caller: Caller, upstream: str, choices: int, tokens: int = 0) -> Grant:
        """Wait for permits for so many choices at once; who gets the grant leaves with it.

        tokens: a guess of what will be spent. Raises ApiError: 400 for what would never fit, 429 for what does not now
        or does not in time, 503 where the gateway shuts down or the ledger does not answer.
        """
        ask = self._ask(caller, upstream, choices, tokens)
        if self._transport.at_once(ask):
            self._metrics.queue_wait(ADMITTED).observe(0.0)
        else:
            await self._waited_for(caller, ask)
        self._metrics.key_requests(caller.name or OTHER).inc()
        self.taken += choices
        return Grant(ask, caller, self)

    async def _waited_for(self, caller: Caller, ask: Ask) -> None:
        """Ask the ledger, and wait until it lets the request in. Raises ApiError where it does not."""
        try:
            answer = await self._answer(ask, ask)
        except BaseException:  # gone while it waited, or in the very moment that it was let in
            self._transport.send(Leave(ask.ticket))
            raise
        if answer.levels:
            self._rates.hear(caller, answer.levels, self._clock())
        if isinstance(answer, Refused):
            raise self._refused(caller, answer, ask.choices)

    # ---- what grants call

    def leave(self, ask: Ask, grant: Grant) -> None:
        """The permits are free again."""
        self.taken -= ask.choices
        self._transport.send(Leave(ask.ticket, grant.owed))

    async def move(self, caller: Caller, ask: Ask, upstream: str) -> None:
        """Take permits to another upstream; see Grant.move."""
        answer = await self._answer(ask, Move(ask.ticket, upstream))
        if isinstance(answer, Refused):
            raise self._refused(caller, answer, ask.choices)

    def count_tokens(self, caller: Caller, prompt: int, completion: int) -> None:
        """So many tokens were spent."""
        for kind, tokens in (("prompt", prompt), ("completion", completion)):
            self._metrics.key_tokens(caller.name or OTHER, kind).inc(tokens)

    # ---- asking the ledger

    def _ask(self, caller: Caller, upstream: str, choices: int, tokens: int) -> Ask:
        self._number += 1
        ticket = f"{self._transport.prefix}-{self._number}"
        most = self._choices if caller.choices is None else caller.choices
        rates, waits = self._rates.limits(caller), not self.draining
        return Ask(ticket, caller.bucket, upstream, choices, tokens, caller.weight, most, rates, waits)

    async def _answer(self, ask: Ask, message: Ask | Move) -> Admitted | Refused:
        """Send a message of the request that asked so, and wait for its answer. Raises ApiError where none comes."""
        started = self._clock()
        waiter = self._waiters[ask.ticket] = _Waiter(ask.key, started)
        self.waiting += ask.choices
        outcome = "left"
        try:
            self._transport.send(message)
            if (answer := waiter.answer) is None:  # a ledger of this process may say so at once
                waiter.told = self._loop.create_future()
                async with asyncio.timeout_at(self._answered_by(waiter)) as waiter.limit:
                    answer = await waiter.told
            outcome = _outcome(answer)
        except TimeoutError:
            outcome = "timeout"
            self._metrics.refused("unanswered").inc()
            raise Unanswered(SHED_RETRY) from None
        finally:
            del self._waiters[ask.ticket]
            self.waiting -= ask.choices
            self._metrics.queue_wait(outcome).observe(self._clock() - started)
        return answer

    def _answered_by(self, waiter: _Waiter) -> float:
        """When the ledger has to have answered, in the loop's time."""
        return waiter.since + self._queue_seconds + ANSWER_SECONDS

    def _hear(self, answer: Answer) -> None:
        """Take what the ledger says; an answer to one who has left is of no use to anybody."""
        if isinstance(answer, Room):
            self._full.clear()
        elif isinstance(answer, Returned):
            self._rates.correct(answer.key, answer.levels, self._clock())
        elif (waiter := self._waiters.get(answer.ticket)) is not None and waiter.answer is None:
            if isinstance(answer, Refused) and answer.full:
                self._full[waiter.key] = answer.retry_after
            waiter.answer = answer
            if waiter.told is not None and not waiter.told.done():
                waiter.told.set_result(answer)

    def _refused(self, caller: Caller, refused: Refused, choices: int) -> ApiError:
        self._metrics.refused(refused.reason).inc()
        if refused.reason in ("requests", "choices", "tokens"):
            self._metrics.key_limited(caller.name or OTHER, refused.reason).inc()
        return error_of(refused, choices)


class AdmissionGuard:
    """A request that was not turned away, and the bytes of its body, for as long as the block runs."""

    __slots__ = ("_client", "_hold")

    def __init__(self, client: AdmissionClient, hold: MemoryReservation) -> None:
        self._client = client
        self._hold = hold

    def __enter__(self) -> MemoryReservation:
        return self._hold

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._hold.release()
        if kind is MemoryFull:
            raise self._client.no_room() from None


def _outcome(answer: Admitted | Refused) -> str:
    """What the wait came to, for the metrics."""
    if isinstance(answer, Admitted):
        return ADMITTED
    return "timeout" if answer.reason == "timeout" else "refused"
