"""The metrics that every process has, and helpers to create metrics."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics

from nproxy.telemetry.collected import MaybeGauge
from nproxy.telemetry.sums import Across, Report, report


class CommonMetrics:
    """Metrics of one process, in a registry of their own.

    They come with the rules by which gauges are combined with those of other processes. labels: the label names of each
    metric, by the metric's name.

    A metric with labels is called with label values and returns the series to count in. The lookups are cached: there
    are few label values, and the library's own lookup takes a lock and joins strings at every request.
    """

    def __init__(self, version: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter and histogram, which nobody reads
        self.registry = CollectorRegistry()
        self.labels: dict[str, tuple[str, ...]] = {}
        self._across: dict[str, Across] = {}
        self.reload_success = self._plain(
            "config_reload_success", "Whether the last reload of the settings succeeded.", across="min"
        )
        self.reload_time = self._plain(
            "config_last_reload_success_timestamp_seconds",
            "When settings were last loaded successfully, in Unix time.",
            across="max",
        )
        self.reloads = self._counter("config_reloads", "Reloads of the settings.", "outcome")
        for outcome in ("applied", "unchanged", "refused"):
            self.reloads(outcome)
        self.engine_up = self._maybe(
            "engine_up",
            "Whether the built-in engine delivered its metrics for this scrape; 0: they are old or missing.",
            across="min",
        )
        self.engine_restarts = self._plain_counter("engine_restarts", "Restarts of the built-in engine.")
        self._gauge("build_info", "The running version.", "version", across="max")(version).set(1)

    def reloaded(self, outcome: str, at: float) -> None:
        """Note that settings were read again. outcome: applied, unchanged or refused. at: Unix time."""
        good = outcome != "refused"
        if good:
            self.reload_time.set(at)
        self.reload_success.set(good)
        self.reloads(outcome).inc()

    def report(self) -> Report:
        """Return what was counted so far, to be added to what other processes have counted."""
        return report(self.registry, self._across)

    def _counter(self, name: str, text: str, *labels: str) -> Callable[..., Counter]:
        return cache(self._plain_counter(name, text, *labels).labels)

    def _plain_counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(self._named(name, labels), text, labels, registry=self.registry)

    def _plain(self, name: str, text: str, *labels: str, across: Across) -> Gauge:
        self._across[f"nproxy_{name}"] = across
        return Gauge(self._named(name, labels), text, labels, registry=self.registry)

    def _maybe(self, name: str, text: str, *, across: Across) -> MaybeGauge:
        self._across[f"nproxy_{name}"] = across
        gauge = MaybeGauge(self._named(name, ()), text)
        self.registry.register(gauge)
        return gauge

    def _gauge(self, name: str, text: str, *labels: str, across: Across) -> Callable[..., Gauge]:
        return cache(self._plain(name, text, *labels, across=across).labels)

    def _named(self, name: str, labels: tuple[str, ...]) -> str:
        self.labels[f"nproxy_{name}"] = labels
        return f"nproxy_{name}"
