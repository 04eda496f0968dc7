"""Where a request for a model may go: to the upstream for it, and to the upstreams to fall back to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from nproxy.openai.frozen import frozen
from nproxy.upstreams.models import ModelName
from nproxy.upstreams.upstream import Upstream


@frozen
class Route:
    """An upstream that a request may go to, and the model's names there."""

    upstream: Upstream
    name: ModelName

    @property
    def model(self) -> str | None:
        """The upstream's own name of the model; None if the request names none."""
        return self.name.upstream or self.name.shown or None

    @property
    def usable(self) -> bool:
        """Whether a healthy replica of the upstream serves the model."""
        return self.upstream.gate.usable(self.model)


class Routes:
    """The routes of one request. Each is looked up when it is needed, because a model list may have to be read.

    The first is followed by its upstream's fallbacks, then by theirs; each upstream comes once. Upstreams without a
    healthy replica are passed over, unless there are no others. model: None if the request names none; then there is
    only the first route. find: returns the names of a model at an upstream, None if its list lacks it. taken: the first
    was usable and has been used, so that `next` returns those behind it.
    """

    def __init__(
        self,
        upstreams: Mapping[str, Upstream],
        first: Route,
        model: str | None,
        find: Callable[[Upstream, str], Awaitable[ModelName | None]],
        *,
        taken: bool,
    ) -> None:
        self._upstreams = upstreams
        self._model = model
        self._find = find
        self._first = first
        self._names = [first.upstream.name, *self._behind(first)] if taken else [first.upstream.name]
        self._position = int(taken)
        self._passed_over: list[Route] = []
        self._found = taken

    @property
    def fallback_possible(self) -> bool:
        """Whether there may be a next route."""
        return bool(self._following()) or bool(self._passed_over and not self._found)

    @property
    def fallback_available(self) -> bool:
        """Whether there may be a next route with a healthy replica."""
        return any(upstream.gate.usable() for upstream in self._following())

    def _following(self) -> Sequence[Upstream]:
        """The upstreams that are known to come next and may have the model."""
        model = self._model
        there = (self._upstreams.get(name) for name in self._names[self._position :])
        return [one for one in there if one is not None and model is not None and not one.models.lacks(model)]

    async def next(self) -> Route | None:
        """The next route; None if there are no more. There is always a first one, unless it is taken."""
        while self._position < len(self._names):
            route = self._first if self._position == 0 else await self._to(self._names[self._position])
            self._position += 1
            if route is None:
                continue
            self._names += [name for name in self._behind(route) if name not in self._names]
            if route.usable:
                self._found = True
                return route
            self._passed_over.append(route)
        return self._passed_over.pop(0) if self._passed_over and not self._found else None

    def _behind(self, route: Route) -> Sequence[str]:
        return () if self._model is None else route.upstream.fallback

    async def _to(self, name: str) -> Route | None:
        """The route to this upstream, if it has the model or its list cannot be read; else None."""
        upstream, model = self._upstreams.get(name), self._model
        if upstream is None or model is None:
            return None
        known = await self._find(upstream, model)
        return None if known is None and not upstream.models.takes_any() else Route(upstream, known or ModelName(model))
