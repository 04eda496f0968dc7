"""How n is used, and what it takes to serve it: calls, their widths, retries, the skew between sibling choices."""

from __future__ import annotations

from grafana.source.kit import (
    CALLS,
    CHOICES,
    COUNT,
    IDLE,
    REQUESTS,
    SECONDS,
    SHARE,
    Row,
    bars,
    buckets,
    built,
    lines,
    number,
    rising,
)
from grafana.source.promql import GATEWAY, MODEL, SERVED, UPSTREAM, mean, or_zero, quantile, rate, ratio
from grafana.source.queries import gauges, quantiles, rates

_SKEW = "nproxy_sibling_skew_seconds"
_GENERATED = 'endpoint=~"chat/completions|completions"'
_BEGUN = rate("nproxy_requests_total", UPSTREAM, _GENERATED, 'code="200"')
_ASKED = f"({_BEGUN} - {or_zero(rate('nproxy_broken_answers_total', UPSTREAM, _GENERATED), _BEGUN)})"
_CALLING = rate("nproxy_requests_total", UPSTREAM, _GENERATED, SERVED)
_CALLED = rate("nproxy_legs_total", UPSTREAM)

_NOW = Row(
    "Now",
    [
        number(
            "Choices per answer",
            COUNT,
            "The mean n of successful answers. If it is 1 although n is expected, clients do not send n, or a proxy in "
            "between drops it.",
            ratio(rate("nproxy_choices_total", UPSTREAM), _ASKED),
            none=IDLE,
        ),
        number(
            "Calls per request",
            COUNT,
            "Upstream calls per request, retries included. Close to the choices per answer: fan-out; close to 1: "
            "native n.",
            ratio(_CALLED, _CALLING),
            none=IDLE,
        ),
        number(
            "Choices per call, mean",
            COUNT,
            "Choices requested per upstream call. It falls to 1 if a server turns out to ignore n: see the "
            "capabilities on Upstreams.",
            mean("nproxy_leg_width"),
            none=IDLE,
        ),
        number(
            "Spread of choices, p95",
            SECONDS,
            "Time from the end of a request's first choice to the end of its last. Clients that need all n wait for "
            "the last one.",
            quantile(0.95, _SKEW, MODEL),
            none=IDLE,
        ),
        number(
            "Retried calls",
            SHARE,
            "Retries per call. Above 10 %, upstreams fail more often than the retry budget is meant for; see the "
            "reasons below.",
            ratio(or_zero(rate("nproxy_retries_total", UPSTREAM), _CALLED), _CALLED),
            none=IDLE,
            thresholds=rising(0.05, 0.1),
        ),
        number(
            "Anomalies per answer",
            SHARE,
            "Answers that nproxy had to correct. They are harmless; if there are many, settings for the upstream are "
            "missing (`nproxy probe URL --yaml` prints them).",
            ratio(or_zero(rate("nproxy_anomalies_total", UPSTREAM), _ASKED), _ASKED),
            none=IDLE,
            thresholds=rising(0.05, 0.5),
        ),
    ],
)

_CHOICES = Row(
    "Choices",
    [
        lines(
            "Choices by finish reason",
            CHOICES,
            "length: max_tokens was reached. error: choices that failed after all retries, with on_leg_failure: "
            "partial. content_filter: filtered by the upstream.",
            rates("nproxy_choices_total", MODEL, by=("finish_reason",)),
            stacked=True,
        ),
        lines(
            "Answers by mode",
            REQUESTS,
            "relay: one call, passed through; native: one call with n, corrected if necessary; fanout: several calls, "
            "merged.",
            rates("nproxy_requests_total", UPSTREAM, _GENERATED, 'mode!=""', by=("mode",)),
            stacked=True,
        ),
        lines(
            "Spread of choices",
            SECONDS,
            "Time from the end of a request's first choice to the end of its last, by upstream. If it is large in "
            "fan-out, `parallel` makes calls wait, or replicas differ in speed.",
            *quantiles(_SKEW, MODEL, by=("upstream",), shares=(0.5, 0.95)),
        ),
    ],
)

_CALLS = Row(
    "Calls",
    [
        buckets(
            "Choices per call",
            COUNT,
            "Calls per second, by their number of choices. If all are in the lowest row, everything is fan-out.",
            rate("nproxy_leg_width_bucket", GATEWAY, by=("le",)),
        ),
        lines(
            "Calls in flight",
            COUNT,
            "If it stays above zero while no request is in flight, calls have leaked (alert NproxyLeakedCalls).",
            gauges("sum", "nproxy_inflight_legs", UPSTREAM, by=("upstream",)),
            stacked=True,
        ),
        lines(
            "Calls by outcome",
            CALLS,
            "cancelled: the client disconnected, or another call of the request failed. All others except ok are "
            "failures: the kind shows whether the network, the server or its answer is the cause.",
            rates("nproxy_legs_total", UPSTREAM, by=("outcome",)),
            stacked=True,
        ),
        lines(
            "Retries by reason",
            CALLS,
            "Calls that were retried before the client had got any of their output. connect, reset: the server is down "
            "or restarts; status: it answers with 429 or 5xx.",
            rates("nproxy_retries_total", UPSTREAM, by=("upstream", "reason")),
        ),
        lines(
            "Resumed streams",
            CALLS,
            "Calls that broke off after part of their output had been sent, and the outcome of resuming them. differs: "
            "the server is not reproducible; spent: raise retries; impossible: see docs/fleet.md on resume.",
            rates("nproxy_resumes_total", UPSTREAM, by=("how", "outcome")),
        ),
        bars(
            "Anomalies by kind",
            CALLS,
            "What nproxy corrected, by upstream. n_refused, seed_omitted: learned once and remembered for ten minutes; "
            "short_answer: n was ignored, and the missing choices were fetched.",
            rates("nproxy_anomalies_total", UPSTREAM, by=("upstream", "kind")),
        ),
    ],
)

_LATENCY = Row(
    "Streams",
    [
        buckets(
            "Time to first token",
            SECONDS,
            "All requests, as a heat map. Two bands mean two kinds of prompts, or a slow replica.",
            rate("nproxy_time_to_first_token_seconds_bucket", MODEL, by=("le",)),
            width=12,
        ),
        buckets(
            "Between events",
            SECONDS,
            "Time between events of a call. If a band moves up with the load, the batch is full.",
            rate("nproxy_inter_token_seconds_bucket", MODEL, by=("le",)),
            width=12,
        ),
    ],
)

DASHBOARD = built(
    "nproxy-choices",
    "nproxy / Choices and fan-out",
    "The n that clients request, and the upstream calls that serve it.",
    [_NOW, _CHOICES, _CALLS, _LATENCY],
)
