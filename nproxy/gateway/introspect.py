"""The endpoints about the gateway itself: /health, /ready, /metrics, /status."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from math import inf

from aiohttp import hdrs

from nproxy.concurrency.tasks import first_wanted
from nproxy.config import Config
from nproxy.gateway.app import App
from nproxy.gateway.exchange import Exchange
from nproxy.openai.errors import not_ready, unknown_url
from nproxy.openai.jsonvalue import dumps
from nproxy.telemetry.formats import negotiated
from nproxy.telemetry.sums import Report, exposition
from nproxy.upstreams.dns import Known
from nproxy.upstreams.replicas import Replica
from nproxy.upstreams.upstream import Upstream
from nproxy.upstreams.verdicts import OK


async def health(app: App, exchange: Exchange) -> None:
    """Answer /health: the process lives."""
    await answer_health(exchange)


async def ready(app: App, exchange: Exchange) -> None:
    """Answer /ready: 200 if some upstream answers and no drain has begun, else 503."""
    await answer_ready(exchange, await why_unready(app))


async def metrics(app: App, exchange: Exchange) -> None:
    """Answer /metrics, for all workers; the built-in engine's own metrics follow the gateway's."""
    await answer_metrics(
        exchange, app.config, partial(report, app) if app.all_processes is None else app.all_processes.report
    )


async def status(app: App, exchange: Exchange) -> None:
    """Answer /status, for all workers: upstreams, replicas, what was learned, and what is in flight, as JSON."""
    document = status_document(app) if app.all_processes is None else await app.all_processes.status()
    await exchange.respond(200, dumps(document))


async def answer_health(exchange: Exchange) -> None:
    """Answer /health, on any port."""
    await exchange.respond(200, b'{"status":"ok"}')


async def answer_ready(exchange: Exchange, reason: str | None) -> None:
    """Answer /ready, on any port. reason: why no requests should be sent; None if they may be."""
    if reason is not None:
        raise not_ready(reason)
    await exchange.respond(200, b'{"status":"ready"}')


async def answer_metrics(exchange: Exchange, config: Config, read: Callable[[], Awaitable[Report]]) -> None:
    """Answer /metrics, on any port, with the report that `read` returns, in the format that the client prefers."""
    if not config.telemetry.metrics:
        raise unknown_url("Metrics are switched off.")
    form = negotiated(",".join(exchange.request.headers.getall(hdrs.ACCEPT, ())))
    body = await asyncio.to_thread(exposition, await read(), form)
    await exchange.respond(200, body, {hdrs.VARY: hdrs.ACCEPT}, content_type=form.content_type)


async def why_unready(app: App) -> str | None:
    """Return why this process should get no requests; None if it is ready for them."""
    if app.draining:
        return "The gateway is shutting down."
    asked = [upstream.why_silent for upstream in app.upstreams.all]
    why = await first_wanted(asked, wanted=lambda why: not why)
    return None if why == "" else "No upstream answers."


async def report(app: App) -> Report:
    """Return the metrics of this process, and those of the engine."""
    engine = {} if app.engine_metrics is None else await app.engine_metrics.report()
    return {**await own_report(app), **engine}


async def own_report(app: App) -> Report:
    """Return the metrics of this process alone.

    With hundreds of models a report takes half a second, so it is made in a thread, and streams go on. One is made
    after the other, however many scrapers ask or leave, because a thread takes turns with the event loop.
    """
    look(app)
    return await app.reporting.run("", app.metrics.report)


def look(app: App) -> None:
    """Set the gauges of current state."""
    app.metrics.inflight_choices.set(app.admission.taken)
    app.metrics.queue_choices.set(app.admission.waiting)
    app.metrics.tasks.set(len(asyncio.all_tasks()))
    app.metrics.certificate_expiry.value = None if app.certificate is None else app.certificate.expiry
    _show_replicas(app)
    _show_capabilities(app)


def status_document(app: App) -> dict[str, object]:
    """Return what /status reports of this process."""
    return {
        "draining": app.draining,
        "settings": app.history.status(),
        "inflight": {"requests": app.inflight, "choices": app.admission.taken, "waiting": app.admission.waiting},
        "upstreams": [_describe(upstream, app.upstreams.hosts(upstream)) for upstream in app.upstreams.all],
    }


def _describe(upstream: Upstream, hosts: Mapping[str, Known]) -> dict[str, object]:
    return {
        "name": upstream.name,
        "legs_waiting": upstream.gate.waiting,
        "learned": upstream.capabilities.known(),
        "capabilities": upstream.capabilities.status(),
        "models_readable": upstream.models.readable,
        "fallback": upstream.settings.fallback,
        "hosts": [
            {"name": name, "resolved": known.resolved, "addresses": known.addresses} for name, known in hosts.items()
        ],
        "replicas": [_describe_replica(replica) for replica in upstream.gate.replicas],
    }


_OF_A_KEY = (401, True), (402, True), (403, True)
"""Errors (status, with nproxy's own key) which say that the key is refused or its quota is spent. They are exported
from 0 on, because alerts use their increase."""


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
    """Rebuild the metrics of replicas, so that replicas that are gone disappear from them."""
    up: dict[tuple[str, ...], float] = {}
    draining: dict[tuple[str, ...], float] = {}
    shut: dict[tuple[str, ...], float] = {}
    calls: dict[tuple[str, ...], float] = {}
    seconds: dict[tuple[str, ...], float] = {}
    errors: dict[tuple[str, ...], float] = {}
    now = time.monotonic()
    for upstream in app.upstreams.all:
        refused = dict.fromkeys(_OF_A_KEY, 0) if upstream.own_key else {}
        for replica in upstream.gate.replicas:
            labels = upstream.name, replica.label
            if replica.up is not None:
                up[labels] = replica.up
            draining[labels] = replica.draining
            shut[labels] = replica.shut
            seconds[labels] = replica.call_seconds(now)
            for outcome, ended in {OK: 0, **replica.ended}.items():
                calls[*labels, outcome] = ended
            for (status, own), failed in {**refused, **replica.errors}.items():
                errors[*labels, str(status), "own" if own else "other"] = failed
    app.metrics.host_resolved.values = {
        (upstream.name, name): known.resolved
        for upstream in app.upstreams.all
        for name, known in app.upstreams.hosts(upstream).items()
        if known.resolved is not None
    }
    app.metrics.replicas.values = {(one.name,): len(one.gate.replicas) for one in app.upstreams.all}
    app.metrics.legs_waiting.values = {(one.name,): one.gate.waiting for one in app.upstreams.all}
    app.metrics.replica_up.values = up
    app.metrics.replica_draining.values = draining
    app.metrics.breaker_open.values = shut
    app.metrics.replica_calls.values = calls
    app.metrics.replica_call_seconds.values = seconds
    app.metrics.replica_errors.values = errors


def _show_capabilities(app: App) -> None:
    """Rebuild the gauges of capabilities, so that what was forgotten disappears from them.

    If several models share a label, the least value is shown.
    """
    least: dict[tuple[str, ...], float] = {}
    for upstream in app.upstreams.all:
        for model, known in upstream.capabilities.status().items():
            shown = app.metrics.model_label(model, upstream.name)
            for name, value in known.items():
                if isinstance(value, str):
                    continue  # not known yet
                labels = (upstream.name, shown, name)
                least[labels] = min(inf if value is None else value, least.get(labels, inf))
    app.metrics.capability.values = least
