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
from grafana.source.promql import GATEWAY, MODEL, UPSTREAM, mean, or_zero, quantile, rate, ratio
from grafana.source.queries import gauges, quantiles, rates

_SKEW = "nproxy_sibling_skew_seconds"
_GENERATED = 'endpoint=~"chat/completions|completions"'
_ASKED = rate("nproxy_requests_total", UPSTREAM, _GENERATED, 'code="200"')
_CALLED = rate("nproxy_legs_total", UPSTREAM)

_NOW = Row(
    "Now",
    [
        number(
            "Choices per answer",
            COUNT,
            "The mean n of answers that came. 1 where n is expected: clients do not send it, or a proxy in between "
            "drops it.",
            ratio(rate("nproxy_choices_total", UPSTREAM), _ASKED),
            none=IDLE,
        ),
        number(
            "Calls per answer",
            COUNT,
            "Upstream calls for each answer, retries included. Near the choices per answer: fan-out; near 1: native n.",
            ratio(_CALLED, _ASKED),
            none=IDLE,
        ),
        number(
            "Choices per call, mean",
            COUNT,
            "How wide calls are. It falls to 1 where a server with n is found to ignore it: see the capabilities on "
            "Upstreams.",
            mean("nproxy_leg_width"),
            none=IDLE,
        ),
        number(
            "Siblings apart, p95",
            SECONDS,
            "From the first to the last choice of a request finished. Clients that need all n wait for the last one.",
            quantile(0.95, _SKEW, MODEL),
            none=IDLE,
        ),
        number(
            "Calls made again",
            SHARE,
            "Retries per call. Above a tenth: upstreams fail more than their budget is meant for; see why below.",
            ratio(or_zero(rate("nproxy_retries_total", UPSTREAM), _CALLED), _CALLED),
            none=IDLE,
            thresholds=rising(0.05, 0.1),
        ),
        number(
            "Oddities per call",
            SHARE,
            "Answers that had to be mended. Not harmful by itself; many mean that an entry for the upstream is "
            "missing in the settings (`nproxy probe URL --yaml`).",
            ratio(or_zero(rate("nproxy_anomalies_total", UPSTREAM), _CALLED), _CALLED),
            none=IDLE,
            thresholds=rising(0.05, 0.5),
        ),
    ],
)

_CHOICES = Row(
    "Choices",
    [
        lines(
            "How choices end",
            CHOICES,
            "length: max_tokens is too small for what is asked. error: calls that failed for good under "
            "on_leg_failure: partial. content_filter: the upstream's.",
            rates("nproxy_choices_total", MODEL, by=("finish_reason",)),
            stacked=True,
        ),
        lines(
            "Answers by mode",
            REQUESTS,
            "relay: one call, bytes pass; native: one call with n, mended; fanout: several calls, merged.",
            rates("nproxy_requests_total", UPSTREAM, _GENERATED, 'mode!=""', by=("mode",)),
            stacked=True,
        ),
        lines(
            "Siblings apart",
            SECONDS,
            "From the first to the last choice finished, by upstream. Large in fan-out: `parallel` makes calls wait, "
            "or replicas differ in speed.",
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
            "How many calls a second carry how many choices. Everything in the lowest row: all is fan-out.",
            rate("nproxy_leg_width_bucket", GATEWAY, by=("le",)),
        ),
        lines(
            "Calls in flight",
            COUNT,
            "Standing above zero while no request is in flight is a leak (alert NproxyLeakedCalls).",
            gauges("sum", "nproxy_inflight_legs", UPSTREAM, by=("upstream",)),
            stacked=True,
        ),
        lines(
            "Calls by outcome",
            CALLS,
            "cancelled: the client left, or a sibling's failure decided. Everything but ok and cancelled is a "
            "failure: its kind says whether the network, the server or the wire is at fault.",
            rates("nproxy_legs_total", UPSTREAM, by=("outcome",)),
            stacked=True,
        ),
        lines(
            "Retries by reason",
            CALLS,
            "Calls made again before the client read of them. connect, reset: the server is gone or restarts; status: "
            "it answers with 429 or 5xx.",
            rates("nproxy_retries_total", UPSTREAM, by=("upstream", "reason")),
        ),
        lines(
            "Streams taken up again",
            CALLS,
            "Calls that broke off when the client had read of them, and what came of going on. differs: the server is "
            "not reproducible; spent: raise retries; impossible: see docs/fleet.md on resume.",
            rates("nproxy_resumes_total", UPSTREAM, by=("how", "outcome")),
        ),
        bars(
            "Oddities by kind",
            CALLS,
            "What was mended, by upstream. n_refused, seed_omitted: told once and remembered for ten minutes; "
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
            "All requests, as a heat map: two bands are two kinds of prompts, or a slow replica.",
            rate("nproxy_time_to_first_token_seconds_bucket", MODEL, by=("le",)),
            width=12,
        ),
        buckets(
            "Between events",
            SECONDS,
            "Gaps within calls. A band that moves up with the load: the batch is full.",
            rate("nproxy_inter_token_seconds_bucket", MODEL, by=("le",)),
            width=12,
        ),
    ],
)

DASHBOARD = built(
    "nproxy-choices",
    "nproxy / Choices and fan-out",
    "What n is asked for, and what it takes to serve it.",
    [_NOW, _CHOICES, _CALLS, _LATENCY],
)
