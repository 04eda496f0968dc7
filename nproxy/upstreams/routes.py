"""Where a request for a model may go: the upstream for it, and those to fall back to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nproxy.openai.frozen import frozen
from nproxy.upstreams.models import ModelName
from nproxy.upstreams.upstream import Upstream


@frozen
class Route:
    """An upstream that a request may go to, and how the model is called there."""

    upstream: Upstream
    name: ModelName

    @property
    def called(self) -> str | None:
        """The upstream's own name of the model; None where it is known by none."""
        return self.name.upstream or self.name.shown or None

    @property
    def usable(self) -> bool:
        """Whether a replica that is in order serves it."""
        return self.upstream.gate.usable(self.called)


class Routes:
    """The routes of one request, each found when it is asked for: lists of models may have to be read.

    The first, then its upstream's fallbacks, then those of these; each upstream once. Those without a replica in order
    are passed over, unless there are no others. model: None where the request names none; then there is only the first.
    taken: the first was found to be in order, and gone.
    """

    def __init__(
        self, upstreams: Mapping[str, Upstream], first: Route, model: str | None, *, taken: bool = False
    ) -> None:
        self._upstreams = upstreams
        self._model = model
        self._first = first
        self._names = [first.upstream.name, *self._behind(first)] if taken else [first.upstream.name]
        self._place = int(taken)
        self._passed_over: list[Route] = []
        self._found = taken

    @property
    def more(self) -> bool:
        """Whether there may be a next one."""
        return bool(self._following()) or bool(self._passed_over and not self._found)

    @property
    def fallback_available(self) -> bool:
        """Whether there may be a next one that is in order."""
        return any(upstream.gate.usable() for upstream in self._following())

    def _following(self) -> Sequence[Upstream]:
        """Those that may have the model, of the ones that are known to come next."""
        model = self._model
        there = (self._upstreams.get(name) for name in self._names[self._place :])
        return [one for one in there if one is not None and model is not None and not one.models.lacks(model)]

    async def next(self) -> Route | None:
        """The next route; None where there are no more. There is a first one."""
        while self._place < len(self._names):
            route = self._first if self._place == 0 else await self._to(self._names[self._place])
            self._place += 1
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
        """The upstream of this name, if it has the model, or its list cannot be read."""
        upstream, model = self._upstreams.get(name), self._model
        if upstream is None or model is None:
            return None
        known = await upstream.models.find(model)
        return None if known is None and not upstream.models.takes_any() else Route(upstream, known or ModelName(model))
