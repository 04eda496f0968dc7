"""Expressions over nproxy's metrics, for panels whose variables are $job, $instance, $upstream and $model.

A gateway's /metrics covers all its workers, so only instances are aggregated: counters, histograms and what is in
flight are summed. What is up or open is observed by each gateway for itself; `min` and `max` show the worst.
"""

from __future__ import annotations

GATEWAY = 'job=~"$job",instance=~"$instance"'
UPSTREAM = f'{GATEWAY},upstream=~"$upstream"'
MODEL = f'{UPSTREAM},model=~"$model"'
"""The filters for metrics with these labels."""

GEN_AI = f'{UPSTREAM},gen_ai_request_model=~"$model"'
"""The same for OpenTelemetry's names."""

ANSWERS = 'endpoint=~"chat/completions|completions|passthrough"'
"""Requests that need an upstream; scrapes, probes and model lists do not."""
SERVED = 'code!~"4.."'
"""Of these, the ones that count for the error budget: a client's own errors must not make failures look rare."""


def series(metric: str, where: str = GATEWAY, *also: str) -> str:
    """Return the metric's series, filtered by `where` and further label matchers."""
    return f"{metric}{{{','.join((where, *also))}}}"


def over(operator: str, expression: str, *by: str) -> str:
    """Return the expression aggregated over all labels except `by`."""
    return f"{operator} by ({', '.join(by)}) ({expression})" if by else f"{operator}({expression})"


def rate(metric: str, where: str = GATEWAY, *also: str, by: tuple[str, ...] = ()) -> str:
    """Return a counter's growth per second. Rates are summed, not sums rated: a restart would look like a loss."""
    return over("sum", f"rate({series(metric, where, *also)}[$__rate_interval])", *by)


def grown(metric: str, where: str = GATEWAY, *also: str, by: tuple[str, ...] = ()) -> str:
    """Return a counter's growth in the time range of the dashboard."""
    return over("sum", f"increase({series(metric, where, *also)}[$__range])", *by)


def quantile(share: float, histogram: str, where: str = GATEWAY, *also: str, by: tuple[str, ...] = ()) -> str:
    """Return a quantile of a histogram over all instances: buckets can be summed, quantiles cannot.

    Without observations there is no value: `>= 0` drops the NaN that Prometheus returns then.
    """
    return f"histogram_quantile({share}, {rate(f'{histogram}_bucket', where, *also, by=('le', *by))}) >= 0"


def mean(histogram: str, where: str = GATEWAY, *also: str, by: tuple[str, ...] = ()) -> str:
    """Return the mean of a histogram's observations."""
    return ratio(*(rate(f"{histogram}_{part}", where, *also, by=by) for part in ("sum", "count")))


def ratio(part: str, whole: str) -> str:
    """Return part divided by whole; no value, instead of NaN, if the whole is 0."""
    return f"{part} / ({whole} > 0)"


def or_zero(expression: str, like: str) -> str:
    """Return the expression, and 0 if it has no series but `like` has: nothing counted yet is not a gap."""
    return f"({expression} or 0 * {like})"


def bad_answers(by: tuple[str, ...] = ()) -> str:
    """Return failed answers per second: a 5xx, or a 200 whose stream broke off later."""
    everything = rate("nproxy_requests_total", MODEL, ANSWERS, SERVED, by=by)
    refused = or_zero(rate("nproxy_requests_total", MODEL, ANSWERS, 'code=~"5.."', by=by), everything)
    broken = or_zero(rate("nproxy_broken_answers_total", MODEL, ANSWERS, by=by), everything)
    return f"{refused} + {broken}"


def error_ratio(by: tuple[str, ...] = ()) -> str:
    """Return the share of answers that failed, of those that are no 4xx."""
    return ratio(f"({bad_answers(by)})", rate("nproxy_requests_total", MODEL, ANSWERS, SERVED, by=by))
