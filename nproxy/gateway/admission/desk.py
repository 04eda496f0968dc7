"""The desk: where a request of this process asks for its permits, waits for them, moves them and gives them back."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

from nproxy.config import Config
from nproxy.gateway.admission.clerk import Clerk, Connect, Transport
from nproxy.gateway.admission.ledger import Bounds
from nproxy.gateway.admission.memory import BODIES_SHARE, Bodies, Full, Hold, Memory, limit_of
from nproxy.gateway.admission.messages import Admitted, Answer, Ask, Kind, Leave, Level, Move, Refused, Room
from nproxy.gateway.admission.rates import MINUTE
from nproxy.gateway.admission.refusals import FULL, UNANSWERED, error_of, limited, rate_headers, unavailable
from nproxy.gateway.callers import Caller, Rates
from nproxy.openai.errors import ApiError
from nproxy.telemetry.metrics import OTHER, Metrics

MOST_LEVELS = 4096
"""Keys whose rates this process remembers, for answers that come without asking the ledger."""
ANSWER_SECONDS = 5.0
"""How long a ledger may take to answer, besides the time that a request may wait there: its process may stand still."""
SHED_RETRY = 2.0
"""Seconds that a client is told to wait where memory is short."""


class Grant:
    """A request's permits. tokens: that it has spent; None while nobody has told. least: what it has for sure."""

    def __init__(self, desk: Desk, caller: Caller, ask: Ask) -> None:
        self.tokens: int | None = None
        self.least = 0
        self._desk = desk
        self._caller = caller
        self._ask = ask

    def spend(self, prompt: int, completion: int) -> None:
        """Tokens were spent, beyond those of an earlier call; what was guessed of them counts no more."""
        self.tokens = (self.tokens or 0) + prompt + completion
        self._desk.count_tokens(self._caller, prompt, completion)

    def came(self, tokens: int) -> None:
        """At least so many more were spent: who leaves a stream before its usage pays for what was guessed or this."""
        self.least += tokens

    @property
    def owed(self) -> int | None:
        """The tokens to charge; None for those that were charged at first."""
        charged = min(self._ask.tokens, self._ask.rates.tokens or 0)
        return self.least if self.tokens is None and self.least > charged else self.tokens

    def nothing_came(self) -> None:
        """The client got an error: where nobody told of tokens, none were spent."""
        self.tokens = self.tokens or 0

    async def move(self, upstream: str) -> None:
        """Take the permits to another upstream, waiting for its own as for the first.

        Raises ApiError where it has none; the request then has none at any upstream, and may move on or end.
        """
        await self._desk.move(self._ask, upstream)


@dataclass(frozen=True, slots=True)
class _Waiter:
    key: str
    answer: asyncio.Future[Admitted | Refused]


class Desk:
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
        self._waiters: dict[str, _Waiter] = {}
        self._full: dict[str, float] = {}  # keys that need not ask, and when they may try again
        self._levels: OrderedDict[str, tuple[float, tuple[Level, ...]]] = OrderedDict()
        self._number = 0
        self._take(config)
        self._transport: Transport = Clerk(Bounds.of(config), self._hear)

    def connect(self, connect: Connect) -> None:
        """Ask another ledger than one of this process's own. Before the first request."""
        self._transport.close()
        self._transport = connect(self._hear)

    def reconfigure(self, config: Config) -> None:
        """Other limits from now on."""
        self._take(config)
        self._transport.reconfigure(Bounds.of(config))

    def _take(self, config: Config) -> None:
        limits = config.limits
        self._choices = limits.per_key_choices
        self._queue_seconds = limits.queue_seconds
        self._rates = Rates(limits.requests_per_minute, limits.choices_per_minute, limits.tokens_per_minute)
        self.memory.limit = limit = limit_of(config)
        self.bodies.limit = None if limit is None else int(BODIES_SHARE * limit)

    def close(self) -> None:
        """Let nobody in any more."""
        self._transport.close()

    # ---- at the door, before anything is read

    @contextmanager
    def door(self, caller: Caller) -> Iterator[Hold]:
        """Turn away whom nothing could be done for, at the least cost; else count the body while the block runs.

        Raises ApiError 429 or 503.
        """
        self.check_memory()
        if (retry_after := self._full.get(caller.bucket)) is not None:
            self._metrics.queue_wait("refused").observe(0.0)
            self._metrics.refused("queue_full").inc()
            raise limited(FULL, "overloaded", retry_after)
        self._check_rates(caller)
        with self.bodies.hold() as hold:
            try:
                yield hold
            except Full:
                raise self._shed("bodies", "Too many large requests are in flight; try again later.") from None

    def check_memory(self) -> None:
        """Raise ApiError 503 where memory is short. In any thread."""
        if self.memory.over(self._loop.time()):
            raise self._shed("memory", "The gateway is short of memory; try again later.")

    def _shed(self, reason: str, message: str) -> ApiError:
        self._metrics.shed(reason).inc()
        self._metrics.refused(reason).inc()
        return unavailable(message, "overloaded", SHED_RETRY)

    # ---- permits

    @asynccontextmanager
    async def admitted(self, caller: Caller, upstream: str, choices: int, tokens: int = 0) -> AsyncIterator[Grant]:
        """Wait for permits for so many choices at once, and hold them while the block runs.

        tokens: a guess of what will be spent. Raises ApiError: 400 for what would never fit, 429 for what does not now
        or does not in time, 503 where the gateway shuts down or the ledger does not answer.
        """
        ask = self._ask(caller, upstream, choices, tokens)
        try:
            answer = await self._answer(ask, ask)
        except BaseException:  # gone while it waited, or in the very moment that it was let in
            self._transport.send(Leave(ask.ticket))
            raise
        self._remember(caller, answer.levels)
        if isinstance(answer, Refused):
            if answer.reason in ("requests", "choices", "tokens"):
                self._metrics.key_limited(caller.name or OTHER, answer.reason).inc()
            raise self._refused(answer, choices)
        self._metrics.key_requests(caller.name or OTHER).inc()
        self.taken += choices
        grant = Grant(self, caller, ask)
        try:
            yield grant
        finally:
            self.taken -= choices
            self._transport.send(Leave(ask.ticket, grant.owed))

    async def move(self, ask: Ask, upstream: str) -> None:
        """See Grant.move."""
        answer = await self._answer(ask, Move(ask.ticket, upstream))
        if isinstance(answer, Refused):
            raise self._refused(answer, ask.choices)

    def _ask(self, caller: Caller, upstream: str, choices: int, tokens: int) -> Ask:
        self._number += 1
        return Ask(
            ticket=f"{self._transport.prefix}-{self._number}",
            key=caller.bucket,
            upstream=upstream,
            choices=choices,
            tokens=tokens,
            weight=caller.weight,
            most=self._choices if caller.choices is None else caller.choices,
            rates=self._rates_of(caller),
            waits=not self.draining,
        )

    async def _answer(self, ask: Ask, message: Ask | Move) -> Admitted | Refused:
        """Send a message of the request that asked so, and wait for its answer. Raises ApiError where none comes."""
        started = self._loop.time()
        waiter = self._waiters[ask.ticket] = _Waiter(ask.key, self._loop.create_future())
        self.waiting += ask.choices
        outcome = "left"
        try:
            self._transport.send(message)
            async with asyncio.timeout(self._queue_seconds + ANSWER_SECONDS):
                answer = await waiter.answer
            outcome = _outcome(answer)
        except TimeoutError:
            outcome = "timeout"
            self._metrics.refused("unanswered").inc()
            raise unavailable(UNANSWERED, "not_ready", SHED_RETRY) from None
        finally:
            del self._waiters[ask.ticket]
            self.waiting -= ask.choices
            self._metrics.queue_wait(outcome).observe(self._loop.time() - started)
        return answer

    def _hear(self, answer: Answer) -> None:
        """Take what the ledger says; an answer to one who has left is of no use to anybody."""
        if isinstance(answer, Room):
            self._full.clear()
        elif (waiter := self._waiters.get(answer.ticket)) is not None and not waiter.answer.done():
            if isinstance(answer, Refused) and answer.full:
                self._full[waiter.key] = answer.retry_after
            waiter.answer.set_result(answer)

    def _refused(self, refused: Refused, choices: int) -> ApiError:
        self._metrics.refused(refused.reason).inc()
        return error_of(refused, choices)

    # ---- rates

    def headers(self, caller: Caller) -> dict[str, str]:
        """How far a key is with its rates, as far as this process knows; nothing where it has none or is not known."""
        return rate_headers(self._levels_of(caller)) if caller.bucket else {}

    def _check_rates(self, caller: Caller) -> None:
        """Refuse a key that may not even ask for one choice now. What this process knows of is spent for sure."""
        for level in self._levels_of(caller):
            wait = level.behind + MINUTE / level.limit - MINUTE
            if wait > 0 and level.what != "tokens":
                refused = Refused("", level.what, wait, levels=(level,))
                self._metrics.key_limited(caller.name or OTHER, level.what).inc()
                self._metrics.queue_wait("refused").observe(0.0)
                raise self._refused(refused, 1)

    def _levels_of(self, caller: Caller) -> list[Level]:
        rates = self._rates_of(caller)
        limits: tuple[tuple[Kind, int | None], ...] = (
            ("requests", rates.requests),
            ("choices", rates.choices),
            ("tokens", rates.tokens),
        )
        if not any(limit for _, limit in limits):
            return []
        heard, levels = self._levels.get(caller.bucket, (0.0, ()))
        elapsed = self._loop.time() - heard
        behind = {level.what: max(0.0, level.behind - elapsed) for level in levels}
        return [Level(what, limit, behind.get(what, 0.0)) for what, limit in limits if limit is not None]

    def count_tokens(self, caller: Caller, prompt: int, completion: int) -> None:
        """Show in the metrics what a request has spent."""
        for kind, tokens in (("prompt", prompt), ("completion", completion)):
            self._metrics.key_tokens(caller.name or OTHER, kind).inc(tokens)

    def _rates_of(self, caller: Caller) -> Rates:
        own, all = caller.rates, self._rates
        return Rates(own.requests or all.requests, own.choices or all.choices, own.tokens or all.tokens)

    def _remember(self, caller: Caller, levels: tuple[Level, ...]) -> None:
        if levels:
            self._levels[caller.bucket] = self._loop.time(), levels
            self._levels.move_to_end(caller.bucket)
            if len(self._levels) > MOST_LEVELS:
                self._levels.popitem(last=False)


def _outcome(answer: Admitted | Refused) -> str:
    """What the wait came to, for the metrics."""
    if isinstance(answer, Admitted):
        return "admitted"
    return "timeout" if answer.reason == "timeout" else "refused"
