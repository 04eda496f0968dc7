"""What the gateway says of itself: /health, /ready, /metrics, /status."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from math import inf

from prometheus_client import CONTENT_TYPE_LATEST

from nproxy.config import Config
from nproxy.gateway.app import App
from nproxy.gateway.exchange import Exchange
from nproxy.openai.errors import not_ready, unknown_url
from nproxy.openai.jsonvalue import dumps
from nproxy.upstreams.breaker import State
from nproxy.upstreams.replicas import Replica
from nproxy.upstreams.upstream import Upstream

ENGINE_METRICS_SECONDS = 2.0


async def health(app: App, exchange: Exchange) -> None:
    """The process lives."""
    await tell_health(exchange)


async def ready(app: App, exchange: Exchange) -> None:
    """Some upstream answers, and no drain has begun; else 503."""
    await tell_ready(exchange, await why_unready(app))


async def metrics(app: App, exchange: Exchange) -> None:
    """The Prometheus text format, over all workers; the built-in engine's own metrics stand behind the gateway's."""
    await tell_metrics(exchange, app.config, partial(exposition, app) if app.whole is None else app.whole.exposition)


async def status(app: App, exchange: Exchange) -> None:
    """Upstreams, replicas, what was learned, and what is in flight, over all workers, as JSON."""
    told = status_document(app) if app.whole is None else await app.whole.status()
    await exchange.respond(200, dumps(told))


async def tell_health(exchange: Exchange) -> None:
    """Answer /health, on any port."""
    await exchange.respond(200, b'{"status":"ok"}')


async def tell_ready(exchange: Exchange, reason: str | None) -> None:
    """Answer /ready, on any port. reason: why there should be no requests; None where they are welcome."""
    if reason is not None:
        raise not_ready(reason)
    await exchange.respond(200, b'{"status":"ready"}')


async def tell_metrics(exchange: Exchange, config: Config, read: Callable[[], Awaitable[bytes]]) -> None:
    """Answer /metrics, on any port, with what `read` gives."""
    if not config.telemetry.metrics:
        raise unknown_url("Metrics are switched off.")
    await exchange.respond(200, await read(), content_type=CONTENT_TYPE_LATEST)


async def why_unready(app: App) -> str | None:
    """Why this process should get no requests; None where it should."""
    if app.draining:
        return "The gateway is shutting down."
    answering = await asyncio.gather(*(upstream.answers() for upstream in app.upstreams.all))
    return None if any(answering) else "No upstream answers."


async def exposition(app: App) -> bytes:
    """The metrics of this process, and those of the engine."""
    engine = b"" if app.engine is None else await app.engine.document("/metrics", ENGINE_METRICS_SECONDS)
    look(app)
    return app.metrics.exposition(engine)


def look(app: App) -> None:
    """Set the gauges that say how something stands now."""
    app.metrics.inflight_choices.set(app.desk.taken)
    app.metrics.queue_choices.set(app.desk.waiting)
    app.metrics.tasks.set(len(asyncio.all_tasks()))
    _show_replicas(app)
    _show_capabilities(app)


def status_document(app: App) -> dict[str, object]:
    """What /status tells of this process."""
    return {
        "draining": app.draining,
        "settings": app.history.told(),
        "inflight": {"requests": app.inflight, "choices": app.desk.taken, "waiting": app.desk.waiting},
        "upstreams": [_describe(upstream) for upstream in app.upstreams.all],
    }


def _describe(upstream: Upstream) -> dict[str, object]:
    return {
        "name": upstream.name,
        "legs_waiting": upstream.gate.waiting,
        "learned": upstream.capabilities.known(),
        "capabilities": upstream.capabilities.told(),
        "models_readable": upstream.models.readable,
        "fallback": upstream.settings.fallback,
        "replicas": [_describe_replica(replica) for replica in upstream.gate.replicas],
    }


def _describe_replica(replica: Replica) -> dict[str, object]:
    return {
        "replica": replica.label,
        "source": replica.source,
        "weight": replica.weight,
        "models": None if replica.models is None else sorted(replica.models),
        "draining": replica.draining,
        "up": replica.up,
        "breaker": replica.breaker_state,
        "legs": replica.legs,
        "choices": replica.choices,
    }


def _show_replicas(app: App) -> None:
    """Set the gauges anew: replicas that left leave them too."""
    app.metrics.replica_up.clear()
    app.metrics.breaker_open.clear()
    for upstream in app.upstreams.all:
        for replica in upstream.gate.replicas:
            labels = upstream.name, replica.label
            if replica.up is not None:
                app.metrics.replica_up.labels(*labels).set(replica.up)
            app.metrics.breaker_open.labels(*labels).set(replica.breaker_state is not State.CLOSED)


def _show_capabilities(app: App) -> None:
    """Set the gauges anew: what was forgotten leaves them, and of models that share a label the least able is shown."""
    least: dict[tuple[str, str, str], float] = {}
    for upstream in app.upstreams.all:
        for model, told in upstream.capabilities.told().items():
            for name, value in told.items():
                if isinstance(value, str):
                    continue  # not known yet
                labels = (upstream.name, app.metrics.model_label(model, upstream.name), name)
                least[labels] = min(inf if value is None else float(value), least.get(labels, inf))
    app.metrics.capability.clear()
    for labels, number in least.items():
        app.metrics.capability.labels(*labels).set(number)
