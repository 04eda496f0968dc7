"""Each upstream and its replicas: whether they are up, how they answer, and their known capabilities."""

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
_FAILED = rate("nproxy_legs_total", UPSTREAM, 'outcome!~"ok|cancelled|client_error"', by=("upstream",))
_JUDGED = rate("nproxy_legs_total", UPSTREAM, 'outcome!~"cancelled|client_error"')
_REPLICA = ("upstream", "replica")
_OPEN = over("max", series("nproxy_breaker_open", UPSTREAM), *_REPLICA)
_DRAINING = over("max", series("nproxy_replica_draining", UPSTREAM), *_REPLICA)
_UP = over("min", series("nproxy_replica_up", UPSTREAM), *_REPLICA)

_NOW = Row(
    "Now",
    [
        number(
            "Replicas",
            COUNT,
            "Known replicas of all selected upstreams. If there are fewer than expected, registrations have expired, "
            "or a host name has fewer addresses.",
            over("sum", over("max", series("nproxy_replicas", UPSTREAM), "upstream")),
            thresholds=at_least(1),
        ),
        number(
            "Replicas down",
            COUNT,
            "Replicas that were not reachable at the last health check. The log says why; calls go to the others.",
            over("count", _UP) + " - " + over("sum", _UP),
            thresholds=rising(1, 2),
            none="not checked",
        ),
        number(
            "Breakers open",
            COUNT,
            "Replicas that get no calls because too many calls failed; one request at a time tries them again.",
            over("sum", _OPEN),
            thresholds=rising(1, 2),
        ),
        number(
            "Successful calls",
            SHARE,
            "Share of the calls that were not cancelled. Retries hide most failures from clients, but cost time and "
            "tokens.",
            f"1 - {ratio(or_zero(over('sum', _FAILED), over('sum', _CALLED)), _JUDGED)}",
            none=IDLE,
            thresholds=falling(0.99, 0.95),
        ),
        number(
            "Calls in flight",
            COUNT,
            "All selected upstreams together. Compare with what the servers themselves report as running.",
            over("sum", series("nproxy_inflight_legs", UPSTREAM)),
        ),
        number(
            "Fallbacks to another upstream",
            REQUESTS,
            "Requests per second that fell back. If it is not zero, the first upstream cannot answer them, and the "
            "other one has to.",
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
            "Health checks of each replica, as the worst gateway sees them. If all are down at once, health.path is "
            "wrong, or the network has a problem. A host name is down while it does not resolve.",
            Query(_UP, "{{upstream}} {{replica}}"),
            Query(over("min", series("nproxy_host_resolved", UPSTREAM), "upstream", "host"), "{{upstream}} {{host}}"),
            zero=("down", "red"),
            one=("up", "green"),
        ),
        states(
            "Breakers",
            "Open: the replica gets only one call at a time, as a test. The breaker closes when one succeeds; if it "
            "opens again and again, the server fails only under load.",
            Query(_OPEN, "{{upstream}} {{replica}}"),
            zero=("closed", "green"),
            one=("open", "red"),
        ),
        states(
            "Draining",
            "Draining: somebody drained the replica over the admin port of a gateway. It gets no calls until it is "
            "undrained there.",
            Query(_DRAINING, "{{upstream}} {{replica}}"),
            zero=("in use", "green"),
            one=("draining", "orange"),
        ),
        lines(
            "Calls by replica",
            CALLS,
            "Calls follow the weights and the load. A replica at zero is down or draining, or its breaker is open.",
            rates("nproxy_replica_calls_total", UPSTREAM, by=_REPLICA),
            stacked=True,
        ),
        lines(
            "Time per call by replica",
            SECONDS,
            "Mean time from a call's beginning to its end. A replica that is far above the others of its upstream is "
            "overloaded or throttled, or something else uses its GPU; its health checks may well succeed.",
            Query(
                ratio(
                    rate("nproxy_replica_call_seconds_total", UPSTREAM, by=_REPLICA),
                    rate("nproxy_replica_calls_total", UPSTREAM, by=_REPLICA),
                ),
                "{{upstream}} {{replica}}",
            ),
        ),
        lines(
            "Failed calls by replica",
            CALLS,
            "If one replica fails, the cause is that server. If all fail, it is the model, the requests, or the "
            "network in between.",
            rates(
                "nproxy_replica_calls_total",
                UPSTREAM,
                'outcome!~"ok|cancelled|client_error"',
                by=(*_REPLICA, "outcome"),
            ),
        ),
    ],
)

_CALLS = Row(
    "Calls",
    [
        lines(
            "Share of failed calls",
            SHARE,
            "Share of all calls to the upstream. Above 10 % for ten minutes, an alert fires (NproxyUpstreamFailing).",
            Query(ratio(or_zero(_FAILED, _CALLED), _CALLED), "{{upstream}}"),
            thresholds=rising(0.05, 0.1),
        ),
        lines(
            "Failures by kind",
            CALLS,
            "connect, stale, reset: the connection failed; unavailable: no replica could be called; timeout, down: "
            "too slow or hanging; status: the server refused; client_error: the request was wrong; cut, malformed, "
            "short: its answer was invalid.",
            rates("nproxy_legs_total", UPSTREAM, 'outcome!~"ok|cancelled"', by=("upstream", "outcome")),
            stacked=True,
        ),
        lines(
            "Errors by status",
            CALLS,
            "Errors that servers answered. 401, 402, 403: the key (nproxy's own if NproxyKeyRefused fires); 429, 503: "
            "no capacity; 400, 404, 422: invalid requests.",
            rates("nproxy_replica_errors_total", UPSTREAM, by=("upstream", "code")),
            stacked=True,
        ),
        lines(
            "Failed answers",
            SHARE,
            "Failures that clients saw despite retries and fallbacks. If it is not zero while other upstreams answer, "
            "set fallback or resume.",
            Query(error_ratio(("upstream",)), "{{upstream}}"),
            thresholds=rising(0.005, 0.05),
            width=12,
        ),
        lines(
            "Calls in flight",
            COUNT,
            "Calls in flight by upstream, waiting ones included: those wait for a slot (parallel), or because a server "
            "refused calls.",
            gauges("sum", "nproxy_inflight_legs", UPSTREAM, by=("upstream",)),
            Query(over("sum", series("nproxy_legs_waiting", UPSTREAM), "upstream"), "{{upstream}}: wait"),
            width=12,
        ),
        lines(
            "Fallbacks to another upstream",
            REQUESTS,
            "Fallbacks per second, from which upstream to which. They cost what the other upstream costs; the replicas "
            "of the first one show the cause.",
            Query(rate("nproxy_fallbacks_total", UPSTREAM, by=("upstream", "to")), "{{upstream}} to {{to}}"),
            width=12,
        ),
        lines(
            "Retried calls",
            CALLS,
            "Calls that were retried before the client had got any of their output. Never more than retries.budget "
            "allows.",
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
            "By upstream and model. If one model is slow, its prompts are long, or it has too few servers.",
            *quantiles(_FIRST, MODEL, by=("upstream", "model"), shares=(0.95,)),
            thresholds=rising(5, 10),
        ),
        lines(
            "Between events, p95",
            SECONDS,
            "Time between events by upstream and model: how smoothly text arrives. If it rises with the calls in "
            "flight, batches are full.",
            *quantiles(_GAP, MODEL, by=("upstream", "model"), shares=(0.95,)),
        ),
        lines(
            "Whole answers, p95",
            SECONDS,
            "By upstream and model. Compare with the length of answers (tokens on Cost) before you suspect a server.",
            *quantiles(_WHOLE, MODEL, ANSWERS, by=("upstream", "model"), shares=(0.95,)),
        ),
        lines(
            "Single calls, p95",
            SECONDS,
            "By upstream and model, from the decision to make a call to its end; each retry counts separately. If it "
            "is far below whole answers, those wait, or make several calls.",
            *quantiles(_CALL, GEN_AI, by=_REQUESTED, shares=(0.95,)),
            width=12,
        ),
        lines(
            "Time per output token, p95",
            SECONDS,
            "By upstream and model, for each choice after its first token. It is the speed that a reader sees; if it "
            "rises with the calls in flight, batches are full.",
            *quantiles(_TOKEN, GEN_AI, by=_REQUESTED, shares=(0.95,)),
            width=12,
        ),
    ],
)

_KNOWN = Row(
    "Known capabilities",
    [
        listing(
            "Capabilities",
            COUNT,
            "n: the most choices per call (Infinity: no limit found); parallel: concurrent calls; all others are 1 or "
            "0. An unexpected 0 is tried again after ten minutes; `nproxy probe URL` tests it now. With `models: "
            "auto`, a model appears once something was learned about it.",
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
    "Each upstream and its replicas: whether they are up, how they answer, and their known capabilities.",
    [_NOW, _REPLICAS, _CALLS, _LATENCY, _KNOWN],
)
