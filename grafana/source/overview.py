"""Whether the gateway is healthy, and where to look if it is not."""

from __future__ import annotations

from grafana.source.kit import (
    CHOICES,
    COUNT,
    IDLE,
    REQUESTS,
    SECONDS,
    SHARE,
    TOKENS,
    Row,
    bars,
    built,
    lines,
    number,
    rising,
)
from grafana.source.processes import PROCESSES
from grafana.source.promql import ANSWERS, GATEWAY, MODEL, error_ratio, over, quantile, rate, series
from grafana.source.queries import Query, quantiles, rates

_FIRST, _GAP, _WHOLE = "nproxy_time_to_first_token_seconds", "nproxy_inter_token_seconds", "nproxy_request_seconds"

_NOW = Row(
    "Now",
    [
        number(
            "Requests",
            REQUESTS,
            "Answers per second, successful or not. If it suddenly drops to zero: does the load balancer still send "
            "requests (/ready), and do clients send any?",
            rate("nproxy_requests_total", MODEL, ANSWERS),
        ),
        number(
            "Choices",
            CHOICES,
            "Choices that end per second. Divided by the requests, this is the n that clients really get.",
            rate("nproxy_choices_total", MODEL),
        ),
        number(
            "Completion tokens",
            TOKENS,
            "Tokens per second, as reported to clients. If they fall while choices in flight rise, upstreams are slow: "
            "see Upstreams, or Engine and KV cache.",
            rate("nproxy_tokens_total", MODEL, 'type="completion"', 'side="client"'),
        ),
        number(
            "Failed answers",
            SHARE,
            "Share of answers that were a 5xx, or a 200 that broke off. The objective is 0.5 % at most. Above it: see "
            "which codes and outcomes grow below, then Upstreams; the access log lists each.",
            error_ratio(),
            thresholds=rising(0.005, 0.05),
            none=IDLE,
        ),
        number(
            "First token, p95",
            SECONDS,
            "Time to the first event, for 19 of 20 requests. If it is high, compare the time in the queue below with "
            "the upstreams' own latency.",
            quantile(0.95, _FIRST, MODEL),
            thresholds=rising(5, 10),
            none=IDLE,
        ),
        number(
            "Choices in flight",
            COUNT,
            "All instances together. If it stays at limits.inflight_choices, requests are waiting: see the queue "
            "below.",
            over("sum", series("nproxy_inflight_choices")),
        ),
    ],
)

_TRAFFIC = Row(
    "Traffic",
    [
        lines(
            "Answers by status",
            REQUESTS,
            "499: the client disconnected; 429: a limit (see Limits below); other 4xx: an invalid request; 5xx: an "
            "error in nproxy or an upstream, the log says which.",
            rates("nproxy_requests_total", MODEL, ANSWERS, by=("code",)),
            stacked=True,
        ),
        lines(
            "Answers by upstream and mode",
            REQUESTS,
            "relay: passed through; native: one call with n; fanout: one call per choice. If fanout appears where "
            "native is expected, see the capabilities on Upstreams.",
            rates("nproxy_requests_total", MODEL, ANSWERS, by=("upstream", "mode")),
            stacked=True,
        ),
        lines(
            "Choices by model",
            CHOICES,
            "Choices that end per second. If one model is at zero while others are not, look at the upstreams that "
            "serve it.",
            rates("nproxy_choices_total", MODEL, by=("model",)),
            stacked=True,
        ),
    ],
)

_LATENCY = Row(
    "Latency, as clients see it",
    [
        lines(
            "Time to first token",
            SECONDS,
            "From the start of a request to its first event, time in the queue included. If only p99 is high: one "
            "replica, or long prompts. If all are high: the queue, or all upstreams.",
            *quantiles(_FIRST, MODEL),
        ),
        lines(
            "Between events",
            SECONDS,
            "Time between events of a stream. If it grows with the load, batches are full. If it grows without load, "
            "see the event loop lag below, or the network is slow.",
            *quantiles(_GAP, MODEL),
        ),
        lines(
            "Whole answers",
            SECONDS,
            "From the start of a request to the end of its answer. It depends on the length of answers; high values "
            "alone are no sign of a problem.",
            *quantiles(_WHOLE, MODEL, ANSWERS, 'upstream!=""'),
        ),
    ],
)

_ERRORS = Row(
    "Errors",
    [
        lines(
            "Failed answers by upstream",
            SHARE,
            "The share that uses up the error budget (0.5 %). If one upstream fails, see its breaker, replicas and "
            "failures on Upstreams. If all fail, the cause is this gateway.",
            Query(error_ratio(("upstream",)), "{{upstream}}"),
            thresholds=rising(0.005, 0.05),
        ),
        lines(
            "Error budget burn rate",
            COUNT,
            "How many times faster than allowed the error budget is used up, from the recording rules: 1 uses it up in "
            "30 days, 14.4 in two days. Above 6 for an hour, an alert fires.",
            *(
                Query(over("max", f'job:nproxy_answers_failed:ratio_rate{window}{{job=~"$job"}}') + " / 0.005", window)
                for window in ("5m", "1h", "6h")
            ),
            thresholds=rising(6, 14.4),
        ),
        lines(
            "Answers that broke off",
            REQUESTS,
            "Answers that failed after the status 200 had been sent, so statuses do not show them. `cut` and `timeout` "
            "are failures of the upstream; resume (docs/fleet.md) repairs them.",
            rates("nproxy_broken_answers_total", MODEL, by=("upstream", "outcome")),
        ),
    ],
)

_LIMITS = Row(
    "Limits",
    [
        lines(
            "Choices in flight and waiting",
            COUNT,
            "If choices wait for long, clients request more than the limits admit: raise the limits if upstreams have "
            "free capacity, otherwise add servers.",
            Query(over("sum", series("nproxy_inflight_choices")), "in flight"),
            Query(over("sum", series("nproxy_queue_choices")), "waiting"),
        ),
        lines(
            "Time in the queue, p95",
            SECONDS,
            "Time that requests waited for admission, by outcome. After limits.queue_seconds a request is refused with "
            "429.",
            *quantiles("nproxy_queue_wait_seconds", by=("outcome",), shares=(0.95,)),
            thresholds=rising(2, 5),
        ),
        lines(
            "Refused by a limit",
            REQUESTS,
            "queue_full, timeout: too many choices are requested. requests, choices, tokens: a rate limit of a key. "
            "memory, bodies: the process is short of memory; connections, calls: of open files.",
            rates("nproxy_requests_refused_total", by=("reason",)),
            stacked=True,
        ),
        bars(
            "Tokens by key",
            TOKENS,
            "Usage by the names in the keys file; `other` if there is none. If one key uses far more than the others, "
            "limit it in the keys file.",
            rates("nproxy_key_tokens_total", GATEWAY, by=("key", "type")),
        ),
        lines(
            "Requests refused by a key's rate limit",
            REQUESTS,
            "These requests got a 429 with Retry-After. This is normal while a client adapts to its limit, but not for "
            "hours.",
            rates("nproxy_key_limited_total", by=("key", "what")),
        ),
        lines(
            "Refused to save memory",
            REQUESTS,
            "The process uses more than limits.memory_mib, or request bodies use up their share. If it is not zero, "
            "allow more memory, fewer choices in flight, or smaller bodies.",
            rates("nproxy_shed_total", by=("reason",)),
        ),
    ],
)

DASHBOARD = built(
    "nproxy-overview",
    "nproxy / Overview",
    "Whether the gateway is healthy, and which of the other dashboards shows more.",
    [_NOW, _TRAFFIC, _LATENCY, _ERRORS, _LIMITS, PROCESSES],
)
