"""The upstreams that one request is sent to, one after the other: the one for its model, then its fallbacks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from nproxy.gateway.admission.grant import Grant
from nproxy.gateway.admission.refusals import Unanswered
from nproxy.gateway.app import App
from nproxy.openai.errors import ApiError
from nproxy.openai.frozen import frozen
from nproxy.upstreams.routes import Route, Routes
from nproxy.upstreams.upstream import Upstream


@frozen
class RoutedRequest:
    """A request as it is sent to one upstream. choices: the number of permits that it needs there."""

    route: Route
    choices: int

    @property
    def upstream(self) -> Upstream:
        """The upstream of its route."""
        return self.route.upstream


A = TypeVar("A", bound=RoutedRequest)


class Fallbacks(Generic[A]):
    """A request's way from upstream to upstream. Call `begin` once, `elsewhere` if that gives none, and `after` each
    time that one failed.

    first: the upstream that has the model. model: the name in the request; None if it names none. plan: prepares the
    request for one upstream; raises ApiError if that upstream cannot do what is asked for.
    """

    def __init__(self, app: App, first: Route, model: str | None, plan: Callable[[Route], A]) -> None:
        self._upstreams = app.upstreams
        self._routes: Routes | None = None  # created on demand: most requests need only the first upstream
        self._first = first
        self._model = model
        self._plan = plan
        self._metrics = app.metrics
        self._name = first.upstream.name

    @property
    def fallback_possible(self) -> bool:
        """Whether there may be another upstream after the current one."""
        return (self._routes is not None or bool(self._first.upstream.fallback)) and self._following().fallback_possible

    @property
    def fallback_available(self) -> bool:
        """Whether there may be a healthy upstream after the current one."""
        return self.fallback_possible and self._following().fallback_available

    def begin(self) -> A | None:
        """Return the request for the upstream that has the model; None if that has fallbacks and is not healthy.

        Raises ApiError if the request is invalid for it.
        """
        first = self._first
        return self._plan(first) if not first.upstream.fallback or first.usable else None

    async def elsewhere(self) -> A:
        """Return the request for the next upstream that can take it, if the one that has the model is not healthy.

        Raises ApiError if the request is invalid for that upstream. Such errors of the others are not reported.
        """
        self._routes = self._upstreams.routes(self._first, self._model)
        while (route := await self._routes.next()) is not None and route.upstream is not self._first.upstream:
            with suppress(ApiError):
                routed = self._plan(route)
                if routed.choices <= route.upstream.settings.max_inflight:
                    return self._taken(routed)
        return self._plan(self._first)

    async def after(self, grant: Grant) -> A | None:
        """Move the permits to the next upstream that supports the request and has room, and return what it gets.

        Returns None if there is none.
        """
        routes = self._following()
        while (route := await routes.next()) is not None:
            try:
                routed = self._plan(route)
                await grant.move(route.upstream.name)
                return self._taken(routed)
            except Unanswered:
                break  # the admission server does not answer, so the next move would fail as well
            except ApiError:
                continue
        return None

    def _following(self) -> Routes:
        if self._routes is None:
            self._routes = self._upstreams.routes(self._first, self._model, taken=True)
        return self._routes

    def _taken(self, routed: A) -> A:
        name = routed.upstream.name
        self._metrics.fallbacks(self._name, name).inc()
        self._name = name
        return routed
