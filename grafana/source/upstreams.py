"""Each upstream and its replicas: whether they are up, how they answer, and what is known about them."""

from __future__ import annotations

from grafana.source.kit import (
    CALLS,
    COUNT,
    IDLE,
    REQUESTS,
    SECONDS,
    SHARE,
    Row,
    at_least,
    built,
    falling,
    lines,
    listing,
    number,
    rising,
    states,
)
from grafana.source.promql import ANSWERS, GEN_AI, MODEL, UPSTREAM, error_ratio, or_zero, over, rate, ratio, series
from grafana.source.queries import Query, gauges, quantiles, rates

_FIRST, _GAP, _WHOLE = "nproxy_time_to_first_token_seconds", "nproxy_inter_token_seconds", "nproxy_request_seconds"
_CALL, _TOKEN = "gen_ai_client_operation_duration_seconds", "gen_ai_server_time_per_output_token_seconds"
_REQUESTED = ("upstream", "gen_ai_request_model")
_CALLED = rate("nproxy_legs_total", UPSTREAM, by=("upstream",))
_FAILED = rate("nproxy_legs_total", UPSTREAM, 'outcome!~"ok|cancelled"', by=("upstream",))
_JUDGED = rate("nproxy_legs_total", UPSTREAM, 'outcome!="cancelled"')
_REPLICA = ("upstream", "replica")
_OPEN = over("max", series("nproxy_breaker_open", UPSTREAM), *_REPLICA)
_UP = over("min", series("nproxy_replica_up", UPSTREAM), *_REPLICA)

_NOW = Row(
    "Now",
    [
        number(
            "Replicas",
            COUNT,
            "Known at the moment, of all upstreams shown. Fewer than expected: registrations ran out, or a host name "
            "gives fewer addresses.",
            over("sum", over("max", series("nproxy_replicas", UPSTREAM), "upstream")),
            thresholds=at_least(1),
        ),
        number(
            "Replicas down",
            COUNT,
            "Not reachable when they were looked at last. The log says why; calls go to the others.",
            over("count", _UP) + " - " + over("sum", _UP),
            thresholds=rising(1, 2),
            none="not looked at",
        ),
        number(
            "Breakers open",
            COUNT,
            "Replicas that get no calls because too many failed; one request at a time tries them again.",
            over("sum", _OPEN),
            thresholds=rising(1, 2),
        ),
        number(
            "Calls that succeed",
            SHARE,
            "Of calls that were not cancelled. Retries hide most failures from clients, and cost time and tokens.",
            f"1 - {ratio(or_zero(over('sum', _FAILED), over('sum', _CALLED)), _JUDGED)}",
            none=IDLE,
            thresholds=falling(0.99, 0.95),
        ),
        number(
            "Calls in flight",
            COUNT,
            "All upstreams shown together. Compare with what the servers themselves say is running.",
            over("sum", series("nproxy_inflight_legs", UPSTREAM)),
        ),
        number(
            "Gone to another upstream",
            REQUESTS,
            "Requests a second that fell back. Not zero: the first upstream cannot answer, and the substitute pays "
            "for it.",
            rate("nproxy_fallbacks_total", UPSTREAM),
            none="no fallback",
        ),
    ],
)

_REPLICAS = Row(
    "Replicas",
    [
        states(
            "Reachable",
            "By the looks at each replica, the worst gateway's view. Down everywhere at once: health.path is wrong, "
            "or the network is.",
            Query(_UP, "{{upstream}} {{replica}}"),
            zero=("down", "red"),
            one=("up", "green"),
        ),
        states(
            "Breakers",
            "Open: no calls but one that tries. It closes by itself when that one succeeds; flapping means that the "
            "server fails under load only.",
            Query(_OPEN, "{{upstream}} {{replica}}"),
            zero=("closed", "green"),
            one=("open", "red"),
        ),
        lines(
            "Calls by replica",
            CALLS,
            "They follow the weights and the load. One at zero: it is down, drained, or its breaker is open.",
            rates("nproxy_replica_calls_total", UPSTREAM, by=_REPLICA),
            stacked=True,
            width=12,
        ),
        lines(
            "Failed calls by replica",
            CALLS,
            "One alone: that server. All alike: the model, the requests, or the network in between.",
            rates("nproxy_replica_calls_total", UPSTREAM, 'outcome!~"ok|cancelled"', by=(*_REPLICA, "outcome")),
            width=12,
        ),
    ],
)

_CALLS = Row(
    "Calls",
    [
        lines(
            "Calls that fail",
            SHARE,
            "Of all calls to the upstream. Above a tenth for ten minutes is an alert (NproxyUpstreamFailing).",
            Query(ratio(or_zero(_FAILED, _CALLED), _CALLED), "{{upstream}}"),
            thresholds=rising(0.05, 0.1),
        ),
        lines(
            "Failures by kind",
            CALLS,
            "connect, stale, reset: the connection; timeout, down: too slow or hanging; status: its own refusal; cut, "
            "malformed, short: its answer.",
            rates("nproxy_legs_total", UPSTREAM, 'outcome!~"ok|cancelled"', by=("upstream", "outcome")),
            stacked=True,
        ),
        lines(
            "Errors by status",
            CALLS,
            "What servers say. 401, 402, 403: the key, nproxy's own where NproxyKeyRefused fires; 429, 503: no room; "
            "400, 404, 422: the requests.",
            rates("nproxy_replica_errors_total", UPSTREAM, by=("upstream", "code")),
            stacked=True,
        ),
        lines(
            "Failed answers",
            SHARE,
            "What clients saw in spite of retries and fallbacks. Not zero while others answer: give it a fallback, or "
            "resume.",
            Query(error_ratio(("upstream",)), "{{upstream}}"),
            thresholds=rising(0.005, 0.05),
            width=12,
        ),
        lines(
            "Calls in flight",
            COUNT,
            "By upstream. Those that wait are among them: for a call that parallel allows, or because a server "
            "turned some away.",
            gauges("sum", "nproxy_inflight_legs", UPSTREAM, by=("upstream",)),
            Query(over("sum", series("nproxy_legs_waiting", UPSTREAM), "upstream"), "{{upstream}}: wait"),
            width=12,
        ),
        lines(
            "Gone to another upstream",
            REQUESTS,
            "Requests a second, from where to where. They cost what the substitute costs; the first one's replicas "
            "say why.",
            Query(rate("nproxy_fallbacks_total", UPSTREAM, by=("upstream", "to")), "{{upstream}} to {{to}}"),
            width=12,
        ),
        lines(
            "Calls made again",
            CALLS,
            "Before the client read of them. More than retries.budget lets through is never tried.",
            rates("nproxy_retries_total", UPSTREAM, by=("upstream",)),
            width=12,
        ),
    ],
)

_LATENCY = Row(
    "Latency",
    [
        lines(
            "Time to first token, p95",
            SECONDS,
            "By upstream and model. One model alone: its prompts are long, or its servers too few.",
            *quantiles(_FIRST, MODEL, by=("upstream", "model"), shares=(0.95,)),
            thresholds=rising(5, 10),
        ),
        lines(
            "Between events, p95",
            SECONDS,
            "By upstream and model: how smoothly text comes. Rising with the calls in flight: batches are full.",
            *quantiles(_GAP, MODEL, by=("upstream", "model"), shares=(0.95,)),
        ),
        lines(
            "Whole answers, p95",
            SECONDS,
            "By upstream and model. Compare with answers' lengths (tokens on Cost) before blaming a server.",
            *quantiles(_WHOLE, MODEL, ANSWERS, by=("upstream", "model"), shares=(0.95,)),
        ),
        lines(
            "Single calls, p95",
            SECONDS,
            "By upstream and model, from the moment that a call is to be made to its end, retries each by itself. Far "
            "below the whole answers: these wait, or call several times.",
            *quantiles(_CALL, GEN_AI, by=_REQUESTED, shares=(0.95,)),
            width=12,
        ),
        lines(
            "Time per output token, p95",
            SECONDS,
            "By upstream and model, for each choice by itself, behind its first token. It is what a reader feels; "
            "rising with the calls in flight: batches are full.",
            *quantiles(_TOKEN, GEN_AI, by=_REQUESTED, shares=(0.95,)),
            width=12,
        ),
    ],
)

_KNOWN = Row(
    "What is known of them",
    [
        listing(
            "Capabilities",
            COUNT,
            "n: the widest call (Infinity: no limit showed); parallel: calls at once; all others are 1 or 0. A 0 that "
            "surprises: it is asked again after ten minutes; `nproxy probe URL` asks now.",
            over("min", series("nproxy_capability", MODEL), "upstream", "model", "name"),
            "upstream",
            "model",
            "name",
            value="Able",
            width=24,
        )
    ],
)

DASHBOARD = built(
    "nproxy-upstreams",
    "nproxy / Upstreams",
    "Each upstream and its replicas: whether they are there, how they answer, what is known of them.",
    [_NOW, _REPLICAS, _CALLS, _LATENCY, _KNOWN],
)
