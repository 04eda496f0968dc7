"""The engine's `/metrics`: the core's own counts, as of its latest step, and its steps' durations."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from engine.messages import Ready, Stats, StepDone

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5)
_SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256)

_COUNTERS = {
    "steps": ("nproxy_engine_steps", "Engine steps."),
    "forks": ("nproxy_engine_forks", "Sequences forked from a prompt that was computed once."),
    "block_copies": (
        "nproxy_engine_block_copies",
        "KV blocks copied because a sequence wrote into a shared one (copy-on-write).",
    ),
    "kv_bytes_read": (
        "nproxy_engine_kv_read_bytes",
        "Bytes of keys and values that attention has to read, as a step is planned.",
    ),
    "prefix_kv_bytes_read": (
        "nproxy_engine_prefix_kv_read_bytes",
        "Bytes of keys and values of shared prefixes, each counted once for all sequences that share it.",
    ),
    "kv_bytes_unshared": (
        "nproxy_engine_kv_unshared_bytes",
        "Bytes of keys and values that attention would have read without sharing prefixes between sequences.",
    ),
}
_GAUGES = {
    "blocks_shared": ("nproxy_engine_blocks_shared", "KV blocks held by more than one sequence."),
    "peak_blocks": ("nproxy_engine_blocks_peak", "Largest number of KV blocks in use at once since the start."),
}


_RUNS_BY = ("device", "dtype", "kernels", "quantization")


class Metrics:
    """Holds the latest stats and the histograms. `Stats` counts from the core's start, so values are set, not added."""

    def __init__(self, ready: Ready) -> None:
        """`ready` gives the pool's size, for the time before the first step, and what the model runs on."""
        # These would be a second series for each counter and histogram, unused, and a clash of names in OpenMetrics.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._stats = Stats(blocks_free=ready.blocks)
        self.runs_by = {name: getattr(ready, name) for name in _RUNS_BY}
        self._seconds = Histogram(
            "nproxy_engine_step_seconds", "Duration of an engine step.", buckets=_SECONDS, registry=self._registry
        )
        self._sequences = Histogram(
            "nproxy_engine_batch_sequences", "Sequences in a step.", buckets=_SEQUENCES, registry=self._registry
        )
        self._registry.register(_Latest(self))

    @property
    def stats(self) -> Stats:
        """The core's counts after its latest step."""
        return self._stats

    def observe(self, step: StepDone) -> None:
        """Record what a step reported. A step that ran nothing only brings new stats."""
        self._stats = step.stats
        if step.batch_sequences:
            self._seconds.observe(step.seconds)
            self._sequences.observe(step.batch_sequences)

    def exposition(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self._registry)


class _Latest(Collector):
    """Turns the latest stats into metric families at each scrape."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        stats, runs_by = self._metrics.stats, self._metrics.runs_by
        info = GaugeMetricFamily("nproxy_engine_info", "How the model runs.", labels=list(runs_by))
        info.add_metric(list(runs_by.values()), 1)
        yield info
        blocks = {"used": stats.blocks_used, "cached": stats.blocks_cached, "free": stats.blocks_free}
        yield _labelled(GaugeMetricFamily, "nproxy_engine_blocks", "KV blocks.", "state", blocks)
        sequences = {"running": stats.running, "waiting": stats.waiting}
        yield _labelled(GaugeMetricFamily, "nproxy_engine_sequences", "Sequences in the engine.", "state", sequences)
        tokens = {"prompt": stats.prompt_tokens_computed, "completion": stats.tokens_drawn}
        yield _labelled(
            CounterMetricFamily, "nproxy_engine_tokens", "Prompt tokens computed, and tokens sampled.", "type", tokens
        )
        cache = {"hit": stats.prefix_cache_hits, "miss": stats.prefix_cache_misses}
        yield _labelled(
            CounterMetricFamily,
            "nproxy_engine_prefix_cache_tokens",
            "Prompt tokens whose keys and values were cached (hit), or had to be computed (miss).",
            "result",
            cache,
        )
        preempted = {"blocks": stats.preemptions - stats.gave_way, "fairness": stats.gave_way}
        yield _labelled(
            CounterMetricFamily,
            "nproxy_engine_preemptions",
            "Sequences preempted because no KV blocks were free (blocks), or for a narrower request that had waited "
            "long enough (fairness).",
            "reason",
            preempted,
        )
        for field, (name, text) in _COUNTERS.items():
            yield CounterMetricFamily(name, text, value=getattr(stats, field))
        for field, (name, text) in _GAUGES.items():
            yield GaugeMetricFamily(name, text, value=getattr(stats, field))


def _labelled(
    kind: type[GaugeMetricFamily] | type[CounterMetricFamily], name: str, text: str, label: str, values: dict[str, int]
) -> Metric:
    family = kind(name, text, labels=[label])
    for value, count in values.items():
        family.add_metric([value], count)
    return family
