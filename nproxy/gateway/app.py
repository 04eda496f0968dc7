"""The gateway of one process: the state that all requests share, and the entry point for each request."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path

from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse

from nproxy import __version__
from nproxy.choices.lessons import Lesson
from nproxy.config import Config, Key
from nproxy.gateway.access import end_span, log_request
from nproxy.gateway.admission.client import AdmissionClient
from nproxy.gateway.all_processes import AllProcesses
from nproxy.gateway.answering import answer, give_up, respond_with_error
from nproxy.gateway.callers import UNLIMITED
from nproxy.gateway.driver import Drive
from nproxy.gateway.engine_metrics import EngineMetrics
from nproxy.gateway.exchange import Exchange
from nproxy.gateway.keeping import KeepingExchange
from nproxy.gateway.offload import Offload
from nproxy.gateway.openapi.document import gateway_document
from nproxy.gateway.openapi.serving import OpenApi
from nproxy.gateway.pages.site import Site
from nproxy.gateway.record import Record
from nproxy.gateway.reload import History
from nproxy.gateway.request_id import request_id
from nproxy.gateway.request_settings import RequestSettings
from nproxy.gateway.response_writer import ClientLeft
from nproxy.gateway.tls import ServedCertificate
from nproxy.gateway.tracing import UNTRACED, begin
from nproxy.openai.errors import ApiError
from nproxy.telemetry.metrics import Metrics
from nproxy.telemetry.tracing import Tracer
from nproxy.upstreams.upstream import Upstream
from nproxy.upstreams.upstreams import Upstreams
from nproxy.upstreams.via import Pseudonym

log = logging.getLogger("nproxy.gateway")


class App:
    """The state of one gateway process. Create it inside the event loop; call `close` once.

    settings: those of requests that begin now. A reload replaces the object, so each request keeps a reference.
    history: since when these settings are in use, and the result of the last reload.
    offload: the thread in which LONG bodies are read.
    reporting: the thread in which metrics are read.
    all_processes: makes reports for all processes of the gateway; None if this is the only process.
    tell_lesson: called with each new lesson; None if this is the only process.
    draining: no new work is wanted, and /ready says so.
    leaving: another process replaces this one; each connection ends with its next answer.
    drives: the generation requests in flight.
    inflight: the number of requests in flight, without those that ask about the gateway itself.
    """

    def __init__(
        self,
        config: Config,
        keys: Sequence[Key] = (),
        engine_socket: Path | None = None,
        pseudonym: Pseudonym | None = None,
    ) -> None:
        """keys: those of the keys file. pseudonym: the gateway's name in `Via`, if it has other processes too."""
        self.settings = RequestSettings(config, keys)
        self.certificate = None if config.listen.tls is None else ServedCertificate(config.listen.tls)
        self.upstreams = Upstreams(config, engine_socket, pseudonym or Pseudonym())
        self.engine = self.upstreams.all[0] if engine_socket is not None else None
        self.offload = Offload()
        self.site = Site()
        self.openapi = OpenApi(gateway_document)
        self.metrics = Metrics(
            version=__version__,
            upstreams=self.upstreams.by_name,
            models=_configured_models(config),
            gen_ai=config.telemetry.gen_ai_metrics,
        )
        self.metrics.name((), (), _ways(config))
        self.engine_metrics = None if self.engine is None else EngineMetrics(self.engine, self.metrics.engine_up)
        self.reporting = Offload()
        self.tracer = _tracer(config, self.metrics)
        self.admission = AdmissionClient(config, self.metrics)
        _warn_of_logged_content(config)
        self.history = History(self.metrics)
        self.all_processes: AllProcesses | None = None
        self.tell_lesson: Callable[[str, str, Lesson], None] | None = None
        self.draining = self.leaving = False
        self.drives: set[Drive] = set()
        self.inflight = 0
        self.metrics.inflight_requests.set_function(lambda: self.inflight)
        self._unanswered: dict[Exchange, asyncio.Task[object]] = {}  # and the task that answers each
        self._stopped: set[Exchange] = set()
        self._ended_by: ApiError | None = None
        self._loop = asyncio.get_running_loop()
        self._idle = asyncio.Event()  # set if nobody waits for it
        self._idle.set()

    @property
    def config(self) -> Config:
        """The current settings."""
        return self.settings.config

    def reconfigure(self, config: Config, keys: Sequence[Key] = ()) -> None:
        """Use other settings for requests that begin from now on. What upstreams and clients may use changes for all.

        keys: those of the keys file. Settings that need a restart must be unchanged. Raises ConfigError if a
        certificate cannot be used; then nothing is changed.
        """
        settings = RequestSettings(config, keys)
        if self.certificate is not None and config.listen.tls is not None:
            self.certificate.change(config.listen.tls)
        self.upstreams.reconfigure(config)
        self.metrics.name(self.upstreams.by_name, _configured_models(config), _ways(config))
        self.admission.reconfigure(config)
        self.settings = settings
        _warn_of_logged_content(config)

    def learn(self, upstream: Upstream, model: str, lesson: Lesson) -> None:
        """Store what an answer taught; if it is new, tell it to the other processes."""
        if upstream.capabilities.learn(model, lesson) and self.tell_lesson is not None:
            self.tell_lesson(upstream.name, model, lesson)

    async def close(self) -> None:
        """Close all upstream connections, and send the remaining spans."""
        self.offload.close()
        self.reporting.close()
        self.admission.close()
        await self.upstreams.close()
        if self.tracer is not None:
            await self.tracer.close()

    async def idle(self) -> None:
        """Wait until no request of any kind is in flight."""
        if self._unanswered:
            self._idle.clear()
            await self._idle.wait()

    def drain(self) -> None:
        """Say at /ready that no new requests are welcome; connections end with the answers that begin from now on."""
        self.draining = self.admission.draining = True
        self._end_connections()

    def leave(self) -> None:
        """Another process replaces this one: connections end with the answers that begin from now on."""
        self.leaving = True
        self._end_connections()

    def _end_connections(self) -> None:
        for exchange in self._unanswered:
            exchange.closing = True

    def end(self, error: ApiError) -> None:
        """End all requests in flight with an error, and answer further ones with it.

        A generation stream that has begun gets the error as an event. Questions about the gateway are answered still.
        """
        self._ended_by = error
        driven = set()
        for drive in self.drives:
            if drive.end(error):
                driven.add(drive.exchange)
        self._end_connections()
        for exchange, task in self._unanswered.items():
            if exchange not in driven and exchange not in self._stopped:
                self._stopped.add(exchange)
                task.cancel()

    def cut_off(self) -> None:
        """Note that the remaining requests are about to lose their connections."""
        for exchange in self._unanswered:
            exchange.record.cut = "ended"

    def handle(
        self,
        request: BaseRequest,
        target: str,
        serve: Callable[[Exchange], Awaitable[None]],
        introspection: bool,
    ) -> Awaitable[StreamResponse]:
        """Answer one request with `serve`, which writes the answer itself; update gauges, metrics and the log.

        Call it in the task that awaits the answer.
        """
        settings = self.settings
        tracing = UNTRACED if introspection else begin(request, self.tracer, settings.trace_ratio)
        record = Record(time.monotonic(), tracing)
        id, closing = request_id(request.headers.get("x-request-id")), self.draining or self.leaving
        make = KeepingExchange if settings.log_content else Exchange
        exchange = make(request, id, record, target, introspection, closing)
        self._entered(exchange)
        if self._ended_by is not None and not introspection:
            serve = partial(give_up, error=self._ended_by, outcome="ended")
        return answer(exchange, serve, settings.write_guard, self._failed, self._left)

    async def _failed(self, exchange: Exchange, error: BaseException) -> bool:
        """Answer for a handler that raised something, or that `end` has cancelled; see `respond_with_error`."""
        if exchange.caller.rates is not UNLIMITED:
            exchange.headers.update(self.admission.headers(exchange.caller))
        if self._ended_by is not None and exchange in self._stopped and not isinstance(error, ApiError | ClientLeft):
            if self._unanswered[exchange].uncancel() and isinstance(error, asyncio.CancelledError):
                return False  # the client has disconnected, too
            await give_up(exchange, self._ended_by, "ended")
            return True
        return await respond_with_error(exchange, error)

    def _entered(self, exchange: Exchange) -> None:
        task = asyncio.current_task(self._loop)  # without the argument, asyncio looks the loop up, with a getpid call
        if task is None:
            raise RuntimeError("a request is answered outside of any task")
        self._unanswered[exchange] = task
        if not exchange.introspection:  # a scrape that counted itself would never read 0
            self.inflight += 1

    def _left(self, exchange: Exchange) -> None:
        del self._unanswered[exchange]
        self._stopped.discard(exchange)
        if not self._unanswered:
            self._idle.set()
        if not exchange.introspection:
            self.inflight -= 1
        record = exchange.record
        record.seconds = time.monotonic() - record.started
        ended = self.metrics.ended(record.endpoint, record.upstream, record.model, record.mode, record.code)
        ended.observe(record.seconds, record.tracing.exemplar)
        if record.broken:
            self.metrics.broken_answers(record.endpoint, record.upstream, record.model, record.outcome).inc()
        log_request(exchange)
        if record.tracing.spans is not None:
            end_span(exchange, record.tracing.spans)


def _warn_of_logged_content(config: Config) -> None:
    if config.telemetry.log_content:
        log.warning("telemetry.log_content: prompts and answers are written to the log and to spans")


def _tracer(config: Config, metrics: Metrics) -> Tracer | None:
    """Return the tracer for the configured collector; None if there is none, or if OTEL_SDK_DISABLED is set."""
    telemetry = config.telemetry
    if telemetry.otlp_endpoint is None or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    from nproxy.telemetry.otlp import OtlpTracer  # needs an optional dependency

    for outcome in ("exported", "failed", "dropped"):
        metrics.spans(outcome)
    headers = {name: secret.get_secret_value() for name, secret in (telemetry.otlp_headers or {}).items()}
    return OtlpTracer(telemetry.otlp_endpoint, headers or None, __version__, metrics.spans)


def _configured_models(config: Config) -> set[str]:
    """Return the model names that the configuration lists."""
    names = set() if config.engine is None else {config.engine.model}
    for upstream in config.upstreams:
        if upstream.models != "auto":
            names.update(upstream.models)
    return names


def _ways(config: Config) -> Iterator[tuple[str, str]]:
    """Yield the pairs of upstreams (from, to) between which the configured fallbacks may move a request."""
    for upstream in config.upstreams:
        yield from combinations((upstream.name, *upstream.fallback), 2)
