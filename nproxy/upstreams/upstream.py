"""An upstream at work: its replicas behind one gate, its abilities, its models, its retry budget."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from pydantic import SecretStr

from nproxy.choices.events import Event, Failure, FailureKind, LegEnded, LegFailed
from nproxy.choices.retry import LOOP_DETECTED, UNSURE, no_room
from nproxy.config import ENGINE_UPSTREAM, Timeouts
from nproxy.config import Upstream as Settings
from nproxy.upstreams.call_group import CallGroup
from nproxy.upstreams.cancel_handle import CancelHandle, GivenUpError
from nproxy.upstreams.capabilities import Capabilities
from nproxy.upstreams.client import Call, Client
from nproxy.upstreams.concurrent_calls import ConcurrentCalls
from nproxy.upstreams.documents import LIST_SECONDS, Documents
from nproxy.upstreams.event_stream import Take
from nproxy.upstreams.failures import given_up, unavailable
from nproxy.upstreams.forward import Answer, ForwardError, forward
from nproxy.upstreams.gate import Gate, Permit, Policy
from nproxy.upstreams.health_checker import CheckResult
from nproxy.upstreams.http.connections import Connections
from nproxy.upstreams.membership import NOBODY, Registered, members
from nproxy.upstreams.models import ModelList
from nproxy.upstreams.permits import NoReplicaError
from nproxy.upstreams.replicas import Replica
from nproxy.upstreams.retry_budget import RetryBudget
from nproxy.upstreams.verdicts import broken

OK, CANCELLED = "ok", "cancelled"
"""How calls end that do not fail; the others end as their failure's kind says."""
_LAST = LegEnded, LegFailed  # of what a call brings
_TEACHING = frozenset({"replicas", "models", "n", "wire", "parallel", "seed", "prefix_cache", "usage", "prompts"})
"""Settings with which an upstream may be another server, or may be asked otherwise."""

TOLD_SECONDS = 10.0
"""How often the log is told of one replica's breaker at most."""

log = logging.getLogger("nproxy.upstreams")


class Upstream:
    """One configured upstream. Its parts are public: the driver plans by `capabilities` and retries by `budget`.

    documents: what nproxy asks of it for itself. own_key: calls carry nproxy's own key, so that a 401 is not the
    client's fault. fallback: the upstreams to go to instead. replays: a stream that is cut is asked for again.
    by_prompt: what begins with the same prompt belongs together.
    """

    def __init__(self, settings: Settings, connections: Connections) -> None:
        self.name = settings.name
        self._connections = connections
        self._follow(settings)
        self._addresses: Mapping[str, Sequence[str]] = {}
        self._registered = NOBODY
        self.client = Client(connections, settings.timeouts, settings.name)
        self.gate = Gate(members(settings.replicas, {}), _policy(settings))
        self.documents = Documents(self.client, self.gate, settings.api_key)
        self.capabilities = self._capabilities()
        self.budget = RetryBudget(settings.retries.budget)
        self.models = self._models()

    def reconfigure(self, settings: Settings) -> None:
        """Take new settings: those who come next are served by them, calls in flight go on with what they have.

        What was learned is forgotten where it may have changed.
        """
        changed = {key for key in Settings.model_fields if getattr(settings, key) != getattr(self.settings, key)}
        self._follow(settings)
        self.client = Client(self._connections, settings.timeouts, settings.name)
        self.documents = Documents(self.client, self.gate, settings.api_key)
        self.budget.share = settings.retries.budget
        if changed & _TEACHING:
            self.capabilities = self._capabilities()
        if "models" in changed:
            self.models = self._models()
        self.gate.follow(_policy(settings))
        self._place()

    def _follow(self, settings: Settings) -> None:
        """Everything that each request reads of the settings is set here."""
        self.settings = settings
        self.api_key = settings.api_key
        self.own_key = isinstance(settings.api_key, SecretStr)
        self.fallback = tuple(settings.fallback)
        self.replays = settings.resume == "replay"
        self.by_prompt = settings.balance == "prefix_affinity"
        self._told_callers = settings.wire == "exact"

    def take(self, addresses: Mapping[str, Sequence[str]], registered: Registered) -> None:
        """Learn what host names resolve to now, and which servers came by themselves; replicas come and go with it."""
        if registered.servers != self._registered.servers:
            self.models.outdated()
        self._addresses, self._registered = addresses, registered
        self._place()

    def _place(self) -> None:
        self.gate.replace(members(self.settings.replicas, self._addresses, self._registered))

    def _capabilities(self) -> Capabilities:
        return Capabilities(self.settings, lambda: len(self.gate.replicas))

    def _models(self) -> ModelList:
        models = self.settings.models
        listed = None if models == "auto" else models
        return ModelList(listed, lambda: self.documents.models(), self._announced_models, upstream=self.name)

    def _announced_models(self) -> set[str]:
        return set().union(*(replica.models for replica in self.gate.replicas if replica.models is not None))

    @property
    def names_matter(self) -> bool:
        """Whether it matters which model is asked for: names are configured, or its servers said what they serve."""
        return self.models.configured or bool(self._announced_models())

    def may_serve(self, model: str) -> bool:
        """Whether not all of its servers have said that they do not serve a model."""
        replicas = self.gate.replicas
        return not replicas or any(replica.serves(model) for replica in replicas)

    @property
    def timeouts(self) -> Timeouts:
        return self.settings.timeouts

    def shows_key(self, headers: Mapping[str, str]) -> bool:
        """Whether it is shown a key of the client's, whose limits are that one's own."""
        return self.api_key == "passthrough" and "Authorization" in headers

    def caller_shown(self, name: str) -> str:
        """What it is told of who calls: nproxy's own engine the caller's name, any other server nothing."""
        return name if self._told_callers else ""

    async def call(self, call: Call, group: CallGroup, take: Take, *, alone: bool = False, waits: bool = False) -> None:
        """Wait at the gate, then send one leg, where its group is, and hand over what comes back; see Client.call.

        alone: with no other call at its replica. waits: until there is room for it; see Gate.permit. The last event is
        LegFailed too where no replica may be asked, or where the one that was asked is found down; `judge` is to be
        told of what else becomes of it.
        """
        try:
            permit = self.gate.permit(call.choices, group, leg=call.leg, alone=alone, waits=waits)
            async with permit as replica:
                self.budget.count_call()
                line = replica.cancel_handle(group.model)
                heard = self._heard(permit, line, take)
                try:
                    with line:
                        await self.client.call(replica, call, heard)
                except GivenUpError:
                    heard([LegFailed(call.leg, given_up(self.name, spoken=line.spoken))])
        except NoReplicaError as nobody:
            take([LegFailed(call.leg, unavailable(self.name, nobody.seconds))])

    def _heard(self, permit: Permit, line: CancelHandle, take: Take) -> Take:
        """What hands a call's events over, and has its replica known by them."""
        leg, group, replica = permit.leg, permit.group, permit.replica
        company = ConcurrentCalls(replica)

        def heard(batch: list[Event]) -> asyncio.Future[None] | None:
            company.spoke()
            last = batch[-1]
            if isinstance(last, _LAST):
                line.whole()
                if isinstance(last, LegFailed):
                    batch[-1] = LegFailed(leg, self._failed(permit, last.failure))
                    return take(batch)
                permit.end = "whole"
                if company.may_have_interrupted:
                    batch[-1] = LegEnded(leg, beside=True)
            line.spoken = True
            self.gate.heard(replica, group)
            return take(batch)

        return heard

    @asynccontextmanager
    async def pass_on(
        self,
        group: CallGroup,
        method: str,
        target: str,
        headers: Mapping[str, str],
        data: bytes | AsyncIterator[bytes] | None,
    ) -> AsyncIterator[Answer]:
        """Wait at the gate, then send a request as it is; see `forward`. The replica is judged by its answer."""
        try:
            async with self.gate.permit(1, group) as replica, AsyncExitStack() as stack:
                self.budget.count_call()
                sent = forward(self.client, self.timeouts, replica, method, replica.root_url(target), headers, data)
                with replica.cancel_handle(group.model):
                    answer = await stack.enter_async_context(sent)
                self.gate.heard(replica, group)
                yield answer
                status = Failure(FailureKind.STATUS, "It answered.", status=answer.status)
                self._passed_on(group, status if answer.status >= 400 else None)
        except ForwardError as error:
            self._passed_on(group, error.failure)
            raise
        except NoReplicaError as nobody:
            raise ForwardError(unavailable(self.name, nobody.seconds)) from None
        except GivenUpError:
            failure = given_up(self.name, spoken=False)
            self._passed_on(group, failure)
            raise ForwardError(failure) from None
        except BaseException:
            self.count(group, 0, CANCELLED)
            raise

    def _passed_on(self, group: CallGroup, failure: Failure | None) -> None:
        self.judge(group, 0, failure)
        if failure is None:
            self.count(group, 0, OK)
        else:
            self.count(group, 0, failure.kind, failure.status)

    def _failed(self, permit: Permit, failure: Failure) -> Failure:
        """Judge by a failure, and say whether another replica can do what this one asks to be spared for a while.

        Where it had no room, say where there may be some.
        """
        group, replica = permit.group, permit.replica
        self.judge(group, permit.leg, failure)
        if no_room(failure):
            sure = failure.status != UNSURE or failure.retry_after is not None  # who is out of order names no time
            failure = replace(failure, room=permit.refused(failure.retry_after, sure=sure))
            if failure.retry_after is None:
                return failure
            replica.rest(failure.retry_after, time.monotonic())
        else:
            permit.end = "broken" if broken(failure) else "error"
            if failure.status != LOOP_DETECTED:
                return failure
        return replace(failure, another=self.gate.other(replica, group))

    def judge(self, group: CallGroup, leg: int, failure: Failure | None) -> None:
        """Take what became of a leg's last call; see `Gate.judge`."""
        replica = self.gate.judge(group, leg, failure)
        if replica is None or failure is None or (now := time.monotonic()) < replica.told_until:
            return  # it opens and closes, as one client's requests fail and others' do not
        replica.told_until = now + TOLD_SECONDS
        # not its message, which may be the server's own words, and these the prompt's
        why = failure.kind.value if failure.status is None else f"{failure.kind.value} {failure.status}"
        log.warning("a replica's circuit breaker is open", extra=self._fields(replica, why=why))

    def count(self, group: CallGroup, leg: int, outcome: str, status: int | None = None) -> None:
        """Note for the metrics how a leg's last call ended, once; nothing where no replica was called.

        status: of the error that it was answered with.
        """
        if (replica := group.uncounted.pop(leg, None)) is None:
            return
        replica.ended[outcome] += 1
        if status is not None:
            replica.errors[status, self.own_key] += 1

    @property
    def watched(self) -> bool:
        """Whether its replicas are looked at: where there is another one, or another upstream, to go to instead.

        The built-in engine is supervised by who started it.
        """
        return self.name != ENGINE_UPSTREAM and (len(self.gate.replicas) > 1 or bool(self.settings.fallback))

    async def check(self, replica: Replica) -> CheckResult | None:
        """Look at a replica, and go by it where that makes it go down or come up.

        None where it says nothing to others: it is busy with calls of this process, or this had nothing to look with.
        """
        health, began = self.settings.health, time.monotonic()
        try:
            status, _ = await self.documents.get(replica, health.path, health.timeout)
            why = f"{health.path} answered {status}."
        except ForwardError as error:
            if error.failure.ours:
                return None
            status, why = None, error.failure.message
        busy = status is None and replica.health.talked_over
        if self.gate.note_check(replica, status):
            level, now = (logging.INFO, "up") if replica.up else (logging.WARNING, "down")
            log.log(level, "a replica is %s", now, extra=self._fields(replica, why=why))
        return None if busy else CheckResult(self.name, replica.label, status, time.monotonic() - began)

    def take_peer_check(self, look: CheckResult, jitter: float) -> None:
        """Go by what another process saw, which has logged it."""
        for replica in self.gate.replicas if self.watched else ():
            if replica.label == look.replica:
                self.gate.note_peer_check(replica, look.status, time.monotonic() - look.seconds, jitter)

    def _fields(self, replica: Replica, *, why: str) -> dict[str, dict[str, str]]:
        return {"fields": {"upstream": self.name, "replica": replica.label, "why": why}}

    async def answers(self) -> bool:
        """Whether any replica answers at all, be it with an error; the built-in engine, whether its model is loaded."""
        if self.name == ENGINE_UPSTREAM:
            return bool(await self.documents.first("/health", LIST_SECONDS))
        looks = [replica.health.answered for replica in self.gate.replicas] if self.watched else []
        if looks and None not in looks:
            return any(looks)
        return await self.documents.any_answers()


def _policy(settings: Settings) -> Policy:
    return Policy(
        parallel=None if settings.parallel == "auto" else settings.parallel,
        resumes=settings.resume != "off",
        breaker=settings.breaker,
        health=settings.health,
    )
