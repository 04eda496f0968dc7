"""docs/reference/metrics.md: the metrics' own help texts, and the additions of metrics.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from docs.generate.markdown import code, table
from engine.messages import Ready
from engine.server.metrics import Metrics as EngineMetrics
from nproxy.telemetry.metrics import ENGINE_PREFIX, Metrics, ParentMetrics
from nproxy.telemetry.sums import UNITS, report_of_text

EXPLAINED = Path(__file__).with_name("metrics.toml")
_READY = Ready(1, 1, 1, 1, 1, frozenset(), "cpu", "float32")

_INTRODUCTION = """\
# Metrics

All metrics of `/metrics`, generated from the code (`make docs`). Series of a histogram end in `_bucket`, `_count` and
`_sum`; the name here is without that ending.

- **Where**: `/metrics` of the gateway, or of its [admin port](../fleet.md#admin-port) if there is one. With several
  workers it is one page for all of them; *workers* says how a metric is combined. `telemetry.metrics: false` switches
  it off.
- **Forms**: Prometheus' text format, or OpenMetrics 1.0 if `Accept` names it, as Prometheus does. OpenMetrics has
  exemplars: the buckets of request, first-token and upstream-call times show the newest `trace_id` that fell into them,
  if the request's trace is recorded. Prometheus keeps them with `--enable-feature=exemplar-storage`.
- **Labels** have the values of the [table below](#labels): from the configuration, from upstreams' own lists up to a
  limit, or from fixed lists. What clients send never becomes a label value.
- **How many**: {all:,} series if chat completions of 20 models were answered at each of 10 upstreams, {one:,} for each
  upstream and model that was requested; {plain:,} with `telemetry.gen_ai_metrics: false`. Each further status of such a
  pair adds {status}, and each further outcome of its calls {outcome}. Models that are never requested have those of
  `nproxy_capability` if the configuration names them, else none. With several workers, `/metrics` is a 503
  `not_ready` if their series take longer than 5 s to add up, which may happen with a thousand models or more; the
  admin port has no such limit.
"""


@dataclass(frozen=True)
class Told:
    """A metric as it is documented. labels: without `le`. across: how its values of several workers are combined."""

    name: str
    kind: str
    text: str
    labels: tuple[str, ...]
    across: str

    @property
    def shown(self) -> str:
        """The metric's name in queries."""
        return f"{self.name}_total" if self.kind == "counter" else self.name

    @property
    def unit(self) -> str:
        """The unit that ends its name; "" if none does."""
        return next((unit for unit in UNITS if self.name.endswith(f"_{unit}")), "")


_ACROSS = {
    "sum": "the sum",
    "present": "the sum",
    "max": "the largest",
    "min": "the smallest",
    "parent": "the parent's own",
    "engine": "the engine's own",
}


def page() -> str:
    """Return the text of docs/reference/metrics.md. Raises LookupError if metrics and explanations do not match."""
    known, groups = told(), explained()["group"]
    named = [name for group in groups for name in group["metrics"]]
    if sorted(named) != sorted(known):
        raise LookupError(f"told or explained only, or twice: {sorted({*named} ^ known.keys())}")
    parts = [_INTRODUCTION.format(**_counts())]
    for group in groups:
        parts += [f"## {group['title']}\n", *([f"{group['text']}\n"] if group["text"] else [])]
        parts += [_metrics(group["metrics"], known), *_queries(group["metrics"])]
    return "\n".join([*parts, "## Labels\n", _labels(known.values())])


@cache
def explained() -> Mapping[str, Any]:
    """Return the contents of metrics.toml."""
    return tomllib.loads(EXPLAINED.read_text(encoding="utf-8"))


def told() -> dict[str, Told]:
    """Return all metrics by name: a gateway's, those of the parent of several workers, and an engine's."""
    gateway, parent = Metrics(version="", upstreams=(), models=()), ParentMetrics("")
    engine = report_of_text(EngineMetrics(_READY).exposition(), ENGINE_PREFIX)
    labels = {**gateway.labels, **parent.labels}
    for name, family in engine.items():
        named = {label: None for _, labelled in family.samples for label, _ in labelled if label != "le"}
        labels[name] = tuple(named)
    of = {**dict.fromkeys(engine, "engine"), **dict.fromkeys(parent.report(), "parent")}
    return {
        name: Told(name, family.kind, family.text, labels.get(name, ()), of.get(name, family.across))
        for name, family in {**gateway.report(), **parent.report(), **engine}.items()
    }


def _counts() -> dict[str, int]:
    """Return the numbers of series that the introduction states."""
    one, two = _series(1, 1), _series(1, 2)
    return {
        "all": _series(10, 20),
        "one": two - one,
        "plain": _series(10, 20, gen_ai=False),
        "status": _series(1, 1, codes=("200", "503")) - one,
        "outcome": _series(1, 1, outcomes=("ok", "reset")) - one,
    }


def _series(
    upstreams: int,
    models: int,
    *,
    codes: Collection[str] = ("200",),
    outcomes: Collection[str] = ("ok",),
    gen_ai: bool = True,
) -> int:
    """Return the number of a gateway's series after chat completions with n for all models at all upstreams."""
    names, served = [f"u{at}" for at in range(upstreams)], [f"m{at}" for at in range(models)]
    metrics = Metrics(version="", upstreams=names, models=served, gen_ai=gen_ai)
    for upstream, model in product(names, served):
        call = ("chat/completions", upstream, model)
        metrics.begun(*call)
        for observed in (metrics.first_token, metrics.inter_token, metrics.per_token):
            observed(*call).observe(0)
        for status in codes:
            metrics.requests(*call, "native", status).observe(0)
        for outcome in outcomes:
            metrics.legs(*call, outcome).observe(0)
        for kind, side in product(("prompt", "completion"), ("client", "upstream")):
            metrics.tokens(*call, kind, side).observe(0)
        metrics.skew(upstream, model).observe(0)
        metrics.choices(upstream, model, "stop").value += 1
        metrics.prompt_saved(upstream, model).inc()
    return sum(len(family.samples) for family in metrics.report().values())


def _metrics(names: Mapping[str, Mapping[str, Any]], known: Mapping[str, Told]) -> str:
    rows = (
        (
            code(one.shown) + (f" ({code(more['as'])})" if "as" in more else ""),
            one.kind + (f", {one.unit}" if one.unit else ""),
            ", ".join(code(label) for label in one.labels),
            one.text,
            _ACROSS[one.across],
        )
        for name, more in names.items()
        for one in (known[name],)
    )
    return table(["metric", "type", "labels", "meaning", "workers"], rows)


def _queries(names: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield example queries."""
    if asked := [code(more["query"]) for more in names.values() if "query" in more]:
        yield "For example:\n"
        yield "\n".join(f"- {query}" for query in asked) + "\n"


def domain(metric: str, label: str) -> Mapping[str, Any]:
    """Return what metrics.toml says of a metric's label. Raises LookupError if it says nothing."""
    labels: Mapping[str, Mapping[str, Any]] = explained()["labels"]
    return labels[f"{metric}.{label}"] if f"{metric}.{label}" in labels else labels[label]


def _labels(known: Collection[Told]) -> str:
    named = explained()["labels"]
    had = [domain(one.name, label) for one in known for label in one.labels]
    if idle := [key for key, entry in named.items() if entry not in had]:
        raise LookupError(f"labels that no metric has: {idle}")
    rows = (_label(key, entry) for key, entry in sorted(named.items(), key=lambda item: item[0].rpartition(".")[::-1]))
    return table(["label", "values", "meaning"], rows)


def _label(key: str, entry: Mapping[str, Any]) -> tuple[str, str, str]:
    metric, _, label = key.rpartition(".")
    given = ", ".join(code(value) if value else "empty" for value in entry["values"]) if "values" in entry else ""
    return code(label) + (f" of {code(metric)}" if metric else ""), given or entry["from"], entry["text"]
