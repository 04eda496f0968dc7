"""An upstream at work: its replicas behind one gate, its capabilities, its model list and its retry budget."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from aiohttp import hdrs
from pydantic import SecretStr

from nproxy.choices.events import Event, Failure, FailureKind, LegEnded, LegFailed
from nproxy.choices.failure_table import LOOP_DETECTED, SERVICE_UNAVAILABLE, no_room
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
from nproxy.upstreams.gate import Gate, Policy
from nproxy.upstreams.health_checks import CheckResult
from nproxy.upstreams.http.connections import Connections
from nproxy.upstreams.membership import NOBODY, Registered, members
from nproxy.upstreams.models import ListAnswer, ModelList
from nproxy.upstreams.replica_call import ReplicaCall
from nproxy.upstreams.replica_slots import NoReplicaError
from nproxy.upstreams.replicas import Replica
from nproxy.upstreams.retry_budget import RetryBudget
from nproxy.upstreams.verdicts import CANCELLED, broken, outcome_of

_TEACHING = frozenset({"replicas", "models", "n", "wire", "parallel", "seed", "prefix_cache", "usage", "prompts"})
"""Settings which, when changed, may mean another server or other requests to it. What was learned is then forgotten."""

_IDEMPOTENT = frozenset({hdrs.METH_GET, hdrs.METH_HEAD, hdrs.METH_OPTIONS, hdrs.METH_PUT, hdrs.METH_DELETE})
"""Methods whose requests may be made again though the first may have been carried out (RFC 9110, section 9.2.2)."""

TOLD_SECONDS = 10.0
"""The log reports a replica's breaker at most once in this many seconds."""

log = logging.getLogger("nproxy.upstreams")


class Upstream:
    """One configured upstream.

    Its parts are public: the driver plans by `capabilities` and takes retries from `budget`.

    documents: small documents that nproxy requests of it for its own use. own_key: calls carry nproxy's own key, so
    that a 401 is not the client's fault. fallback: names of the upstreams to use when this one fails. replays: a stream
    that was cut is requested again. by_prompt: requests with the same beginning of the prompt should go to the same
    replica.
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
        self._told_open: set[Replica] = set()  # whose breakers the log was last told to be open
        self.models = self._models()

    def reconfigure(self, settings: Settings) -> None:
        """Take new settings. New requests follow them; calls in flight continue with the old ones.

        What was learned is forgotten if the change may have made it wrong.
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
        elif changed & {"replicas", "api_key"}:
            self.models.outdated()
        self.gate.follow(_policy(settings))
        self._update_members()

    def _follow(self, settings: Settings) -> None:
        """Set all attributes that requests read from the settings."""
        self.settings = settings
        self.api_key = settings.api_key
        self.own_key = isinstance(settings.api_key, SecretStr)
        self.fallback = tuple(settings.fallback)
        self.replays = settings.resume == "replay"
        self.by_prompt = settings.balance == "prefix_affinity"
        self._told_callers = settings.wire == "exact"

    def take(self, addresses: Mapping[str, Sequence[str]], registered: Registered) -> None:
        """Take what host names resolve to and which servers are registered; add and remove replicas accordingly."""
        if registered.servers != self._registered.servers:
            self.models.outdated()
        self._addresses, self._registered = addresses, registered
        self._update_members()

    def _update_members(self) -> None:
        self.gate.replace(members(self.settings.replicas, self._addresses, self._registered))
        self.capabilities.count_replicas(len(self.gate.replicas))
        self.models.announce(self._announced_models())

    def _capabilities(self) -> Capabilities:
        return Capabilities(self.settings, len(self.gate.replicas))

    def _models(self) -> ModelList:
        models = self.settings.models
        return ModelList(None if models == "auto" else models, self.name)

    async def list_models(self) -> ListAnswer:
        """Request the upstream's own list of models."""
        return await self.documents.models()

    def _announced_models(self) -> set[str]:
        return set().union(*(replica.models for replica in self.gate.replicas if replica.models is not None))

    @property
    def names_matter(self) -> bool:
        """Whether it matters which model is requested: names are configured, or servers announced their models."""
        return self.models.configured or bool(self._announced_models())

    def may_serve(self, model: str) -> bool:
        """Whether a replica may serve a model.

        It is certain that none does only if all of them have announced their models, and this is not among them.
        """
        replicas = self.gate.replicas
        return not replicas or any(replica.serves(model) for replica in replicas)

    @property
    def timeouts(self) -> Timeouts:
        """The limits on its calls."""
        return self.settings.timeouts

    def shows_key(self, headers: Mapping[str, str]) -> bool:
        """Whether it receives the client's own key, so that its limits are those of that client."""
        return self.api_key == "passthrough" and "Authorization" in headers

    def caller_shown(self, name: str) -> str:
        """The caller's name as sent to the upstream; "" for any server but nproxy's own engine."""
        return name if self._told_callers else ""

    async def call(self, call: Call, group: CallGroup, take: Take, *, alone: bool = False, waits: bool = False) -> None:
        """Wait at the gate for a replica, then send one leg and pass on what comes back; see Client.call.

        alone: let no other call run at the replica. waits: wait until the upstream has capacity for it; see
        Gate.attempt.

        The last event is also LegFailed if no replica may be called, or if the replica is found down during the call.
        How the call ended otherwise is to be reported to `judge`.
        """
        try:
            attempt = self.gate.attempt(call.choices, group, leg=call.leg, alone=alone, waits=waits)
            with attempt.at_once() or await attempt.acquire() as replica:
                self.budget.count_call()
                handle = CancelHandle(replica.cancel_handles, group.model)
                heard = self._forwarder(attempt, handle, take)
                try:
                    with handle:
                        await self.client.call(replica, call, heard)
                except GivenUpError:
                    heard([LegFailed(call.leg, given_up(self.name, spoken=handle.spoken))])
        except NoReplicaError as nobody:
            take([LegFailed(call.leg, unavailable(self.name, nobody.seconds))])

    def _forwarder(self, attempt: ReplicaCall, handle: CancelHandle, take: Take) -> Take:
        """Return a callback that forwards a call's events and notes them at its replica."""
        leg, group, replica = attempt.leg, attempt.group, attempt.replica
        others = ConcurrentCalls(replica)

        def heard(batch: list[Event]) -> asyncio.Future[None] | None:
            others.spoke()
            last = batch[-1]
            if type(last) is LegFailed:  # if it is another type, `isinstance` takes five times as long
                handle.whole = True
                batch[-1] = LegFailed(leg, self._failed(attempt, last.failure))
                return take(batch)
            if type(last) is LegEnded:
                handle.whole = True
                attempt.end = "whole"
                if others.may_have_interrupted:
                    batch[-1] = LegEnded(leg, beside=True)
            handle.spoken = True
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
        """Wait at the gate, then forward a request unchanged; see `forward`. The replica is judged by its answer."""
        try:
            attempt = self.gate.attempt(1, group)
            async with AsyncExitStack() as stack:
                replica = stack.enter_context(attempt.at_once() or await attempt.acquire())
                self.budget.count_call()
                sent = forward(self.client, self.timeouts, replica, method, replica.root_url(target), headers, data)
                with CancelHandle(replica.cancel_handles, group.model, once=method not in _IDEMPOTENT):
                    answer = await stack.enter_async_context(sent)
                if answer.status < 400:
                    self.gate.heard(replica, group)
                yield answer
                status = Failure(FailureKind.STATUS, "It answered.", status=answer.status, own_key=self.own_key)
                self._passed_on(group, status if answer.status >= 400 else None)
        except ForwardError as error:
            self._passed_on(group, error.failure)
            raise ForwardError(self._with_untried(error.failure, group, 0)) from None
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
        self.count(group, 0, outcome_of(failure), None if failure is None else failure.status)

    def _failed(self, attempt: ReplicaCall, failure: Failure) -> Failure:
        """Judge the replica by a failure; return the failure with what the replicas' state adds to it.

        room: set if the replica lacked capacity: where there may be some. another: set if the replica asked to be left
        alone for a while, or leads back to this gateway: whether another replica can take the leg; or if it refused the
        connection: whether the leg has not been to all of them.
        """
        group, replica = attempt.group, attempt.replica
        self.judge(group, attempt.leg, failure)
        if no_room(failure):
            # a server that is merely faulty sends no Retry-After
            sure = failure.status != SERVICE_UNAVAILABLE or failure.retry_after is not None
            failure = replace(failure, room=attempt.refused(failure.retry_after, sure=sure))
            if failure.retry_after is None:
                return failure
            replica.rest(failure.retry_after, time.monotonic())
        else:
            attempt.end = "broken" if broken(failure) else "error"
            if failure.status != LOOP_DETECTED:
                return self._with_untried(failure, group, attempt.leg)
        return replace(failure, another=self.gate.other(replica, group))

    def _with_untried(self, failure: Failure, group: CallGroup, leg: int) -> Failure:
        if failure.kind is not FailureKind.CONNECT or failure.ours:
            return failure
        return replace(failure, another=self.gate.untried(group, leg))

    def judge(self, group: CallGroup, leg: int, failure: Failure | None) -> None:
        """Take the result of a leg's last call, and log if a breaker opened by it, or has closed; see `Gate.judge`."""
        replica = self.gate.judge(group, leg, failure)
        if failure is None and self._told_open:
            self._tell_closed()
        if replica is None or failure is None or (now := time.monotonic()) < replica.told_until:
            return  # it opens and closes, if one client's requests fail and others' do not
        replica.told_until = now + TOLD_SECONDS
        self._told_open.add(replica)
        # not the failure's message, which may be the server's own words and so quote the prompt
        why = failure.kind.value if failure.status is None else f"{failure.kind.value} {failure.status}"
        log.warning("a replica's circuit breaker is open", extra=self._fields(replica, why=why))

    def _tell_closed(self) -> None:
        """Log which of the breakers that were logged as open are closed now."""
        self._told_open.intersection_update(self.gate.replicas)
        for replica in tuple(self._told_open):
            if replica.breaker.closed and time.monotonic() >= replica.told_until:
                self._told_open.discard(replica)
                fields = {"upstream": self.name, "replica": replica.label}
                log.info("a replica's circuit breaker is closed", extra={"fields": fields})

    def count(self, group: CallGroup, leg: int, outcome: str, status: int | None = None) -> None:
        """Count for the metrics how a leg's last call ended, at most once. Nothing is counted if no replica was called.

        status: of the error answer, if there was one.
        """
        if (replica := group.uncounted.pop(leg, None)) is None:
            return
        replica.ended[outcome] += 1
        if status is not None:
            replica.errors[status, self.own_key] += 1

    @property
    def watched(self) -> bool:
        """Whether its replicas get health checks: if another replica or a fallback could be used instead.

        The built-in engine gets none, because the process that started it supervises it.
        """
        return self.name != ENGINE_UPSTREAM and (len(self.gate.replicas) > 1 or bool(self.settings.fallback))

    @property
    def to_check(self) -> Sequence[Replica]:
        """The replicas that get health checks now.

        One that has no substitute gets them only while it is believed unreachable, to find out when that is over:
        calls would show it, but there may be none.
        """
        if self.watched:
            return self.gate.replicas
        return [one for one in self.gate.replicas if one.up is False and self.name != ENGINE_UPSTREAM]

    async def check(self, replica: Replica) -> CheckResult | None:
        """Check a replica, and mark it down or up if the result says so.

        None if the result is of no use to other processes: the replica was busy with calls of this process, or this
        process lacked the resources for the check.
        """
        health, began = self.settings.health, time.monotonic()
        try:
            status, _ = await self.documents.get(replica, health.path, health.timeout)
            why = f"{health.path} answered {status}."
        except ForwardError as error:
            if error.failure.ours:
                return None
            status, why = None, error.failure.logged
        if not self.watched:
            replica.health.wait_for_interval()  # nobody waits for it to come back
            return CheckResult(self.name, replica.label, status, time.monotonic() - began)
        busy = status is None and replica.health.talked_over
        if self.gate.note_check(replica, status):
            level, now = (logging.INFO, "up") if replica.up else (logging.WARNING, "down")
            log.log(level, "a replica is %s", now, extra=self._fields(replica, why=why))
        return None if busy else CheckResult(self.name, replica.label, status, time.monotonic() - began)

    def take_peer_check(self, check: CheckResult, jitter: float) -> None:
        """Apply the result of a check by another process, which has logged it already."""
        began = time.monotonic() - check.seconds
        for replica in [one for one in self.gate.replicas if one.label == check.replica]:
            if self.watched:
                self.gate.note_peer_check(replica, check.status, began, jitter)
            elif check.status is not None:
                replica.reached_by_peer(began)

    def _fields(self, replica: Replica, *, why: str) -> dict[str, dict[str, str]]:
        return {"fields": {"upstream": self.name, "replica": replica.label, "why": why}}

    async def why_silent(self) -> str:
        """Why no replica answers; "" if one does, even with an error, or if the built-in engine's model is loaded."""
        if self.name == ENGINE_UPSTREAM:
            return "" if await self.documents.first("/health", LIST_SECONDS) else "Its model is not loaded."
        answered = [replica.health.answered for replica in self.gate.replicas] if self.watched else []
        if answered and None not in answered:
            return "" if any(answered) else "No replica answers its health checks."
        return await self.documents.why_silent()


def _policy(settings: Settings) -> Policy:
    return Policy(
        parallel=None if settings.parallel == "auto" else settings.parallel,
        resumes=settings.resume != "off",
        breaker=settings.breaker,
        health=settings.health,
    )
