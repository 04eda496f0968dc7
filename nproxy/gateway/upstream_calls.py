"""Makes the upstream calls of one request, as it is planned for one upstream."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace

from nproxy.choices.capability import Capability
from nproxy.choices.commands import OpenLeg
from nproxy.choices.compose import asked_as_stream, compose
from nproxy.choices.leg import Leg
from nproxy.choices.plan import Plan
from nproxy.gateway.exchange import Exchange
from nproxy.gateway.fallback import RoutedRequest
from nproxy.gateway.request_id import leg_id
from nproxy.gateway.tracing import TRACE_HEADERS
from nproxy.openai.dialect import Dialect
from nproxy.openai.frozen import frozen
from nproxy.openai.requests import Request
from nproxy.upstreams.affinity import prompt_hash
from nproxy.upstreams.call_group import CallGroup
from nproxy.upstreams.client import Call
from nproxy.upstreams.event_stream import Take
from nproxy.upstreams.headers import upward_fields
from nproxy.upstreams.http.head import Fields

_PATHS = {Dialect.CHAT: "/chat/completions", Dialect.COMPLETIONS: "/completions"}
_WRITTEN_ANEW = (
    "content-type",
    "content-encoding",
    "accept-encoding",
    "x-request-id",
    "idempotency-key",
    *TRACE_HEADERS,
)
_ALL_TELL = (("Content-Type", "application/json"), ("Accept-Encoding", "identity"))


@frozen
class PlannedRequest(RoutedRequest):
    """A request as it is sent to one upstream, with its plan. capability: what the plan relies on."""

    capability: Capability
    plan: Plan


class UpstreamCalls:
    """Makes the upstream calls of one request; what they share is prepared once. fallback_available: see CallGroup."""

    def __init__(self, exchange: Exchange, request: Request, planned: PlannedRequest, fallback_available: bool) -> None:
        headers = exchange.request.headers
        upstream, capability = planned.route.upstream, planned.capability
        self._id = exchange.id
        self._tracing = exchange.record.tracing
        self._idempotency_key = headers.get("idempotency-key")
        self._upstream = upstream
        self._request = request
        self._n = planned.plan.n
        self._capability = capability
        model = planned.route.model
        self.group = CallGroup(
            model,
            capability.prefix_cache,
            prompt_hash(request) if upstream.by_prompt else None,
            exchange.record.assigned,
            (model, exchange.caller.bucket if upstream.shows_key(headers) else ""),
            fallback_available,
        )
        caller = upstream.caller_shown(exchange.caller.name)
        shared = upward_fields(headers, upstream.api_key, _WRITTEN_ANEW, caller)
        self._fields = Fields([*shared, *_ALL_TELL])
        self._made: dict[int, int] = {}  # calls so far, by the first choice that they are to bring
        self._bodies: dict[int, list[Leg]] = {}  # what these calls have asked for

    def open(self, command: OpenLeg, take: Take) -> Awaitable[None]:
        """Make the call of one leg. A call that is made again has another request id and the same idempotency key.

        A call in place of a refused one asks for something else. It has a key of its own, too: servers that know keys
        refuse one that came with another body, or repeat their answer to that.
        """
        leg = command.leg
        offset = leg.client_index(0, self._n)
        attempt = command.attempt
        if offset in self._made:
            attempt = max(attempt, self._made[offset])
        self._made[offset] = attempt + 1
        own = [*self._tracing.headers(leg.number).items()]
        if self._capability.request_id and "request_id" not in leg.omit:
            own.append(("X-Request-Id", leg_id(self._id, offset, attempt)))
        if self._idempotency_key is not None:
            own.append(("Idempotency-Key", f"{self._idempotency_key}-{offset}{self._variant(leg, offset)}"))
        request, capability, upstream = self._request, self._capability, self._upstream
        call = Call(
            leg.number,
            _PATHS[request.dialect],
            self._fields,
            compose(request, capability, leg),
            asked_as_stream(request, capability, leg),
            own,
            upstream.own_key,
            leg.choices(request.prompts),
        )
        return upstream.call(call, self.group, take, alone=command.alone, waits=command.waits)

    def _variant(self, leg: Leg, offset: int) -> str:
        """Return what distinguishes the body of a call from those of earlier calls for the same choice."""
        bodies, body = self._bodies.setdefault(offset, []), replace(leg, number=0)
        if body not in bodies:
            bodies.append(body)
        position = bodies.index(body)
        return f"-b{position}" if position else ""
