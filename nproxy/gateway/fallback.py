"""One request's way along upstreams: the one that has its model, then that one's fallbacks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

from nproxy.gateway.admission.grant import Grant
from nproxy.gateway.admission.refusals import Unanswered
from nproxy.gateway.app import App
from nproxy.openai.errors import ApiError
from nproxy.openai.frozen import frozen
from nproxy.upstreams.routes import Route, Routes
from nproxy.upstreams.upstream import Upstream


@frozen
class Attempt:
    """A request as it goes to one upstream. choices: the permits that it needs there."""

    route: Route
    choices: int

    @property
    def upstream(self) -> Upstream:
        return self.route.upstream


A = TypeVar("A", bound=Attempt)


class Fallbacks(Generic[A]):
    """The attempts of one request: `begin` once, then `after` each that came to nothing.

    first: the upstream that has the model. plan: how a request goes to an upstream; it raises ApiError where that one
    cannot do what is asked for.
    """

    def __init__(self, app: App, first: Route, model: str | None, plan: Callable[[Route], A]) -> None:
        self._further = partial(app.upstreams.routes, first, model)
        self._routes: Routes | None = None  # the usual request looks for none but the first
        self._first = first
        self._plan = plan
        self._metrics = app.metrics
        self._name = first.upstream.name

    @property
    def more(self) -> bool:
        """Whether there may be another upstream behind the one that is asked now."""
        return self._any and self._following().more

    @property
    def fallback_available(self) -> bool:
        """Whether there may be one that is in order."""
        return self._any and self._following().fallback_available

    async def begin(self) -> A:
        """Where the request goes first: if the upstream that has its model is not in order, the next that can take it.

        Raises ApiError where the request is wrong; the client is never told so by an upstream that it did not ask.
        """
        if self._first.usable:
            return self._plan(self._first)
        self._routes = self._further()
        while (route := await self._routes.next()) is not None and route.upstream is not self._first.upstream:
            with suppress(ApiError):
                attempt = self._plan(route)
                if attempt.choices <= route.upstream.settings.max_inflight:
                    return self._taken(attempt)
        return self._plan(self._first)

    async def after(self, grant: Grant) -> A | None:
        """The next upstream that can do what is asked for and has room; the permits are there now. None: no other."""
        routes = self._following()
        while (route := await routes.next()) is not None:
            try:
                attempt = self._plan(route)
                await grant.move(route.upstream.name)
                return self._taken(attempt)
            except Unanswered:
                break  # the next move would wait as long, and in vain
            except ApiError:
                continue
        return None

    @property
    def _any(self) -> bool:
        """Whether the first may have others behind it at all."""
        return self._routes is not None or bool(self._first.upstream.fallback)

    def _following(self) -> Routes:
        if self._routes is None:
            self._routes = self._further(taken=True)
        return self._routes

    def _taken(self, attempt: A) -> A:
        name = attempt.upstream.name
        self._metrics.fallbacks(self._name, name).inc()
        self._name = name
        return attempt
