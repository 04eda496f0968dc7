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
            "Answers a second, whatever became of them. A sudden zero: is the load balancer still sending (/ready), "
            "and is anybody asking?",
            rate("nproxy_requests_total", MODEL, ANSWERS),
        ),
        number(
            "Choices",
            CHOICES,
            "Choices finished a second. Divided by the requests it is the n that clients really get.",
            rate("nproxy_choices_total", MODEL),
        ),
        number(
            "Completion tokens",
            TOKENS,
            "Tokens a second that clients were told of. Falling while choices in flight rise: upstreams are slow, see "
            "Upstreams, or Engine and KV cache.",
            rate("nproxy_tokens_total", MODEL, 'type="completion"', 'side="client"'),
        ),
        number(
            "Failed answers",
            SHARE,
            "Share of answers that were a 5xx, or broke off behind a 200. The objective is 0.5 % at most. Above it: "
            "which codes and outcomes grow below, then Upstreams; the access log names each.",
            error_ratio(),
            thresholds=rising(0.005, 0.05),
            none=IDLE,
        ),
        number(
            "First token, p95",
            SECONDS,
            "Time to the first event, for 19 of 20 requests. High: compare the queue's wait below with the upstreams' "
            "own latency.",
            quantile(0.95, _FIRST, MODEL),
            thresholds=rising(5, 10),
            none=IDLE,
        ),
        number(
            "Choices in flight",
            COUNT,
            "All instances together. Standing at limits.inflight_choices: requests wait, see the queue below.",
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
            "499 is a client that left, 429 a limit (Limits below), 4xx a request at fault, 5xx ours or an "
            "upstream's: the log says which.",
            rates("nproxy_requests_total", MODEL, ANSWERS, by=("code",)),
            stacked=True,
        ),
        lines(
            "Answers by upstream and mode",
            REQUESTS,
            "relay: bytes pass; native: one call with n; fanout: a call for each choice. Fan-out where native is "
            "expected: the capabilities on Upstreams say what was learned.",
            rates("nproxy_requests_total", MODEL, ANSWERS, by=("upstream", "mode")),
            stacked=True,
        ),
        lines(
            "Choices by model",
            CHOICES,
            "Choices finished a second. One model at zero while others go on: look at the upstreams that have it.",
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
            "From the request to its first event, waiting in the queue included. p50 fine and p99 bad: a replica or "
            "long prompts; all bad: the queue, or every upstream.",
            *quantiles(_FIRST, MODEL),
        ),
        lines(
            "Between events",
            SECONDS,
            "Gaps within a stream. Growing with the load: batches are full. Growing without: event loop lag below, or "
            "a slow network.",
            *quantiles(_GAP, MODEL),
        ),
        lines(
            "Whole answers",
            SECONDS,
            "From the request to its end. It follows the length of answers; alone it is no sign of trouble.",
            *quantiles(_WHOLE, MODEL, ANSWERS),
        ),
    ],
)

_ERRORS = Row(
    "Errors",
    [
        lines(
            "Failed answers by upstream",
            SHARE,
            "The share that spends the error budget (0.5 %). One upstream alone: its breaker, replicas and failures "
            "are on Upstreams. All of them: this gateway.",
            Query(error_ratio(("upstream",)), "{{upstream}}"),
            thresholds=rising(0.005, 0.05),
        ),
        lines(
            "Error budget burnt",
            COUNT,
            "How many times faster than the budget allows, by the recording rules: 1 uses it up in 30 days, 14.4 in "
            "two. Above 6 for an hour somebody is called.",
            *(
                Query(over("max", f'job:nproxy_answers_failed:ratio_rate{window}{{job=~"$job"}}') + " / 0.005", window)
                for window in ("5m", "1h", "6h")
            ),
            thresholds=rising(6, 14.4),
        ),
        lines(
            "Answers that broke off",
            REQUESTS,
            "A 200 was sent, then an error: a status tells nothing of these. `cut` and `timeout` are the upstream's; "
            "resume (docs/fleet.md) makes them good.",
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
            "Waiting for long means that more is asked for than limits let in: raise them if upstreams have room, "
            "else add servers.",
            Query(over("sum", series("nproxy_inflight_choices")), "in flight"),
            Query(over("sum", series("nproxy_queue_choices")), "waiting"),
        ),
        lines(
            "Wait to be let in, p95",
            SECONDS,
            "By what came of it. Above limits.queue_seconds nobody waits: such requests are 429s.",
            *quantiles("nproxy_queue_wait_seconds", by=("outcome",), shares=(0.95,)),
            thresholds=rising(2, 5),
        ),
        lines(
            "Refused by a limit",
            REQUESTS,
            "queue_full, timeout: too much is asked for. requests, choices, tokens: a key's own rate. memory, bodies: "
            "the process is short of memory.",
            rates("nproxy_requests_refused_total", by=("reason",)),
            stacked=True,
        ),
        bars(
            "Choices' tokens by key",
            TOKENS,
            "Who uses it, by the names of the keys file; `other` where there is none. One key far ahead: its limits "
            "are in the keys file.",
            rates("nproxy_key_tokens_total", GATEWAY, by=("key", "type")),
        ),
        lines(
            "Requests that a key's rate refused",
            REQUESTS,
            "They got a 429 with Retry-After. Expected while a client learns its limit, not for hours.",
            rates("nproxy_key_limited_total", by=("key", "what")),
        ),
        lines(
            "Refused to save memory",
            REQUESTS,
            "The process holds more than limits.memory_mib, or bodies fill their share. Not zero: more memory, fewer "
            "choices in flight, or smaller bodies.",
            rates("nproxy_shed_total", by=("reason",)),
        ),
    ],
)

DASHBOARD = built(
    "nproxy-overview",
    "nproxy / Overview",
    "Whether the gateway is well, and which of the other dashboards tells more.",
    [_NOW, _TRAFFIC, _LATENCY, _ERRORS, _LIMITS, PROCESSES],
)
