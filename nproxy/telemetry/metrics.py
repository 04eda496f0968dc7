"""The gateway's Prometheus metrics. Names are a contract: dashboards and alerts rely on them.

Label values come from the configuration; model names also come from upstreams' own lists, up to a limit. What clients
send never becomes a label value; `other` is used instead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from functools import cache, partial
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from nproxy.telemetry import genai
from nproxy.telemetry.collected import DroppedLines, Table
from nproxy.telemetry.common_metrics import CommonMetrics
from nproxy.telemetry.counted import Count, Counted
from nproxy.telemetry.observed import Observed, Series, View
from nproxy.telemetry.sums import Across

Key = TypeVar("Key")
Kept = TypeVar("Kept")

OTHER = "other"
MOST_LISTED_MODELS = 100
"""Maximum number of models of one upstream's own list that become label values; each makes some hundred series."""
ENGINE_PREFIX = "nproxy_engine_"
"""Prefix of the metrics that the built-in engine reports."""

_CALL = ("endpoint", "upstream", "model")
_SHED = ("memory", "bodies")
_REFUSED = (
    "too_wide",
    "requests",
    "choices",
    "tokens",
    "queue_full",
    "timeout",
    "draining",
    "unanswered",
    "connections",
    "calls",
)
_BREAKING = ("reset", "timeout", "cut", "malformed", "in_band", "ended", "internal")
"""The common ways in which an answer breaks off after its begin; `broken_answers` has more outcomes, which are rare."""
_LATENCY = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_WAITS = (0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_GAPS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_WIDTHS = (1, 2, 4, 8, 16, 32, 64, 128)


class ByNeed(dict[Key, Kept]):
    """A mapping whose values are made when they are first asked for."""

    def __init__(self, make: Callable[[Key], Kept]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: Key) -> Kept:
        made = self[key] = self._make(key)
        return made


class CallSeries:
    """The series of one endpoint, upstream and model that their requests change, found by these labels once.

    gaps: of `inter_token`. inflight: of `inflight_legs`. Those with further labels are made when they are needed: legs
    by outcome, choices by finish reason, tokens by type and side.
    """

    __slots__ = ("choices", "gaps", "inflight", "legs", "tokens")

    def __init__(self, metrics: Metrics, endpoint: str, upstream: str, model: str) -> None:
        call = endpoint, upstream, model
        self.gaps = metrics.inter_token(*call)
        self.inflight = metrics.inflight_legs(upstream)
        self.legs = ByNeed[str, Series](lambda outcome: metrics.legs(*call, outcome))
        self.choices = ByNeed[str, Count](lambda reason: metrics.choices(upstream, model, reason))
        self.tokens = ByNeed[tuple[str, str], Series](lambda type_and_side: metrics.tokens(*call, *type_and_side))


class KeySeries:
    """The series of one key that its requests change, found by its name once.

    tokens: by type; made when they are needed.
    """

    __slots__ = ("requests", "tokens")

    def __init__(self, metrics: Metrics, key: str) -> None:
        self.requests = metrics.key_requests(key)
        self.tokens = ByNeed[str, Count](lambda type: metrics.key_tokens(key, type))


class ParentMetrics(CommonMetrics):
    """What the parent of several workers counts itself. It replaces the workers' metrics of the same names."""

    def __init__(self, version: str) -> None:
        super().__init__(version)
        self.worker_restarts = self._plain_counter(
            "worker_restarts", "Workers that were started because another one had died."
        )
        self.workers = self._gauge("workers", "Gateway processes.", "state", across="sum")


class Metrics(CommonMetrics):
    """All metrics of one gateway process.

    upstreams, models: the names in the configuration. gen_ai: whether OpenTelemetry's metrics are exposed too.

    Counters with few label values start at 0: Prometheus sees a counter grow only from its second value on.
    """

    def __init__(self, *, version: str, upstreams: Iterable[str], models: Collection[str], gen_ai: bool = True) -> None:
        super().__init__(version)
        self._gen_ai = gen_ai
        self._models: frozenset[str] = frozenset()
        self._listed: defaultdict[str, set[str]] = defaultdict(set)  # by upstream
        self._of_requests()
        self._of_choices()
        self._of_calls()
        self._of_replicas()
        self._of_admission()
        self._of_the_process()
        self.of_call = cache(partial(CallSeries, self))
        self.of_key = cache(partial(KeySeries, self))
        self.ended = cache(self._ended)
        self.name(upstreams, models)

    def _of_requests(self) -> None:
        """Create the metrics of what clients see."""
        self.requests = self._observed(
            (*_CALL, "mode", "code"),
            View("nproxy_requests", "Requests that have ended.", (*_CALL, "mode", "code"), tells="count"),
            View(
                "nproxy_request_seconds", "Time from the start of a request to the end of its answer.", _CALL, _LATENCY
            ),
            genai.REQUEST_DURATION,
        )
        self.broken_answers = self._counter(
            "broken_answers",
            "Answers that failed after the status 200 had been sent.",
            "endpoint",
            "upstream",
            "model",
            "outcome",
        )
        self.inflight_requests = self._plain("inflight_requests", "Requests in flight.", across="sum")
        self.first_token = self._observed(
            _CALL,
            View(
                "nproxy_time_to_first_token_seconds",
                "Time from the start of a request to the first event of its answer.",
                _CALL[1:],
                _LATENCY,
            ),
            genai.FIRST_TOKEN,
        )
        self.per_token = self._observed(_CALL, genai.PER_TOKEN)
        self.fallbacks = self._counter("fallbacks", "Requests that fell back to another upstream.", "upstream", "to")

    def _of_choices(self) -> None:
        """Create the metrics of choices and tokens."""
        self.choices = self._counted("choices", "Choices that have ended.", "upstream", "model", "finish_reason")
        self.inflight_choices = self._plain("inflight_choices", "Choices in flight.", across="sum")
        # Observed for every piece of every stream: more bounds, those of the conventions, would add work to each of
        # them.
        self.inter_token = self._observed(
            _CALL,
            View("nproxy_inter_token_seconds", "Time between two arrivals of events of one upstream call.", _CALL[1:]),
            genai.PER_CHUNK,
            bounds=_GAPS,
        )
        self.skew = self._histogram(
            "sibling_skew_seconds",
            "Time from the end of a request's first choice to the end of its last.",
            _LATENCY,
            "upstream",
            "model",
        )
        self.tokens = self._observed(
            (*_CALL, "type", "side"),
            View(
                "nproxy_tokens",
                "Tokens as reported to clients, and as computed by upstreams.",
                ("upstream", "model", "type", "side"),
                tells="sum",
            ),
            genai.TOKEN_USAGE,
        )
        self.prompt_saved = self._counter(
            "prompt_tokens_saved",
            "Additional prompt tokens that one call per choice would have used.",
            "upstream",
            "model",
        )

    def _of_calls(self) -> None:
        """Create the metrics of upstream calls."""
        self.legs = self._observed(
            (*_CALL, "outcome"),
            View("nproxy_legs", "Upstream calls that have ended.", ("upstream", "outcome"), tells="count"),
            genai.CALL_DURATION,
        )
        self.leg_width = self._histogram("leg_width", "Choices requested in one upstream call.", _WIDTHS)()
        self.inflight_legs = self._counted(
            "inflight_legs", "Upstream calls in flight.", "upstream", family=GaugeMetricFamily
        )
        self.legs_waiting = self._table(
            "legs_waiting",
            "Upstream calls in flight that wait for a replica with free capacity.",
            "upstream",
            across="sum",
        )
        self.retries = self._counter("retries", "Upstream calls that were retried.", "upstream", "reason")
        self.resumes = self._counter(
            "resumes",
            "Answers that broke off after part of them had been sent to the client.",
            "upstream",
            "how",
            "outcome",
        )
        self.anomalies = self._counter(
            "anomalies", "Faults in upstreams' answers that were corrected.", "upstream", "kind"
        )
        self.capability = self._table(
            "capability",
            "What an upstream is known to support: for n the choices per call (+Inf: no limit found), else 0 or 1.",
            "upstream",
            "model",
            "name",
            across="min",
        )

    def _of_replicas(self) -> None:
        """Create the metrics of each server."""
        self.replica_calls = self._table(
            "replica_calls",
            "Calls to the replica that have ended, passed-through requests included.",
            "upstream",
            "replica",
            "outcome",
            across="present",
            family=CounterMetricFamily,
        )
        self.replica_call_seconds = self._table(
            "replica_call_seconds",
            "Seconds that all calls to the replica have taken together, those in flight until now.",
            "upstream",
            "replica",
            across="present",
            family=CounterMetricFamily,
        )
        self.replica_errors = self._table(
            "replica_errors",
            "Calls that the replica answered with an error, also within a 200.",
            "upstream",
            "replica",
            "code",
            "api_key",
            across="present",
            family=CounterMetricFamily,
        )
        self.replica_up = self._table(
            "replica_up",
            "Whether the last call or health check reached the replica and it is not down; absent before the first.",
            "upstream",
            "replica",
            across="min",
        )
        self.replicas = self._table(
            "replicas", "Known replicas of the upstream, healthy or not.", "upstream", across="min"
        )
        self.host_resolved = self._table(
            "host_resolved",
            "Whether the last lookup of a host name in `replicas` found addresses; absent before the first.",
            "upstream",
            "host",
            across="min",
        )
        self.replica_draining = self._table(
            "replica_draining",
            "Whether the replica is drained over the admin port, so that it gets no new calls.",
            "upstream",
            "replica",
            across="max",
        )
        self.breaker_open = self._table(
            "breaker_open",
            "Whether the replica's circuit breaker is open, so that its calls go to other replicas, if there are any.",
            "upstream",
            "replica",
            across="max",
        )

    def _of_admission(self) -> None:
        """Create the metrics of admission."""
        self.queue_choices = self._plain("queue_choices", "Choices that wait for admission.", across="sum")
        self.queue_wait = self._histogram(
            "queue_wait_seconds",
            "Time that requests waited for admission, for a fallback, or until another outcome.",
            _WAITS,
            "outcome",
        )
        self.refused = self._counter("requests_refused", "Requests refused because of a limit.", "reason")
        self.shed = self._counter("shed", "Requests refused to save memory.", "reason")
        for reason in _SHED:
            self.shed(reason)
        for reason in (*_REFUSED, *_SHED):
            self.refused(reason)
        self.key_requests = self._counted("key_requests", "Requests admitted, by the name of their key.", "key")
        self.key_tokens = self._counted(
            "key_tokens", "Tokens as reported to clients, by the name of their key.", "key", "type"
        )
        self.key_limited = self._counter(
            "key_limited", "Requests refused because of a rate limit of their key.", "key", "what"
        )

    def _of_the_process(self) -> None:
        """Create the metrics of this process."""
        self.loop_lag = self._plain(
            "event_loop_lag_seconds", "How late the event loop ran a timer, at the last measurement.", across="max"
        )
        self.tasks = self._plain("event_loop_tasks", "All tasks of the event loop.", across="sum")
        self.certificate_expiry = self._maybe(
            "tls_certificate_expiry_timestamp_seconds",
            "When the TLS certificate expires, or the first one of its chain, in Unix time.",
            across="min",
        )
        self.spans = self._counter("spans", "Spans of traces, by outcome of their export.", "outcome")
        self.registry.register(DroppedLines())

    def _counted(
        self,
        name: str,
        text: str,
        *labels: str,
        family: type[CounterMetricFamily | GaugeMetricFamily] = CounterMetricFamily,
    ) -> Callable[..., Count]:
        """Create a metric that the event loop changes at every request; values are summed over processes."""
        counted = Counted(self._named(name, labels), text, labels, family)
        self.registry.register(counted)
        return counted.at

    def _table(
        self,
        name: str,
        text: str,
        *labels: str,
        across: Across,
        family: type[CounterMetricFamily | GaugeMetricFamily] = GaugeMetricFamily,
    ) -> Table:
        """Create a metric that is set anew for each report, all its series together."""
        self._across[f"nproxy_{name}"] = across
        table = Table(self._named(name, labels), text, labels, family)
        self.registry.register(table)
        return table

    def _observed(self, labels: tuple[str, ...], *views: View, bounds: tuple[float, ...] = ()) -> Callable[..., Series]:
        shown = [view for view in views if self._gen_ai or view.name.startswith("nproxy_")]
        self.labels.update({view.name: view.labels for view in shown})
        observed = Observed(labels, bounds, shown)
        self.registry.register(observed)
        return observed.at

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Callable[..., Series]:
        return self._observed(labels, View(f"nproxy_{name}", text, labels, buckets))

    def name(self, upstreams: Iterable[str], models: Collection[str], ways: Iterable[tuple[str, str]] = ()) -> None:
        """Add the names of a new configuration; earlier names stay, as their series do.

        ways: pairs of upstreams (from, to) between which requests may fall back.
        """
        self._models |= frozenset(models)
        for upstream in upstreams:
            self.inflight_legs(upstream)
        for way in ways:
            self.fallbacks(*way)

    def _ended(self, endpoint: str, upstream: str, model: str, mode: str, code: int) -> Series:
        """Return the series of requests that ended so. mode: "" if they were sent to no upstream.

        The first one that was sent to one creates the series of broken answers, since others may break off from now on.
        """
        if mode:
            self.begun(endpoint, upstream, model)
        return self.requests(endpoint, upstream, model, mode, str(code))

    def begun(self, endpoint: str, upstream: str, model: str) -> None:
        """Create the series of broken answers for these labels."""
        for outcome in _BREAKING:
            self.broken_answers(endpoint, upstream, model, outcome)

    def model_label(self, model: str, upstream: str, *, listed: bool = False) -> str:
        """Return the model's name if the configuration or the upstream's own list has it, else `other`.

        listed: the upstream's list has it now. The first `MOST_LISTED_MODELS` listed models of an upstream that are
        looked up keep their names permanently, as their series do.
        """
        known = self._listed[upstream]
        if listed and len(known) < MOST_LISTED_MODELS:
            known.add(model)
        if model in known:
            return model
        return model if model in self._models else OTHER
