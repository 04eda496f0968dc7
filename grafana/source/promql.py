"""Expressions over nproxy's metrics, for panels whose variables are $job, $instance, $upstream and $model.

A gateway's /metrics speaks for all its workers, so what is left are instances: counters, histograms and what is in
flight add up; what is up or open is seen by each gateway for itself, and `min` and `max` show the worst.
"""

from __future__ import annotations

GATEWAY = 'job=~"$job",instance=~"$instance"'
UPSTREAM = f'{GATEWAY},upstream=~"$upstream"'
MODEL = f'{UPSTREAM},model=~"$model"'
"""What a metric with these labels is narrowed down to."""

GEN_AI = f'{UPSTREAM},gen_ai_request_model=~"$model"'
"""The same for OpenTelemetry's names."""

ANSWERS = 'endpoint=~"chat/completions|completions|passthrough"'
"""Requests that an upstream is asked for; scrapes, probes and lists of models are none."""


def series(metric: str, where: str = GATEWAY, *also: str) -> str:
    """The metric's series, where further label matchers hold too."""
    return f"{metric}{{{','.join((where, *also))}}}"


def over(operator: str, expression: str, *by: str) -> str:
    """The expression aggregated over all labels but these."""
    return f"{operator} by ({', '.join(by)}) ({expression})" if by else f"{operator}({expression})"


def rate(metric: str, where: str = GATEWAY, *also: str, by: tuple[str, ...] = ()) -> str:
    """How much a counter grows a second. Rates are summed, never sums rated: a restart would look like a loss."""
    return over("sum", f"rate({series(metric, where, *also)}[$__rate_interval])", *by)


def grown(metric: str, where: str = GATEWAY, *also: str, by: tuple[str, ...] = ()) -> str:
    """How much a counter grew in the time that the dashboard shows."""
    return over("sum", f"increase({series(metric, where, *also)}[$__range])", *by)


def quantile(share: float, histogram: str, where: str = GATEWAY, *also: str, by: tuple[str, ...] = ()) -> str:
    """A quantile of what a histogram saw, over all instances: buckets add up, quantiles do not.

    Where it saw nothing there is none; `>= 0` drops the NaN that Prometheus has for it.
    """
    return f"histogram_quantile({share}, {rate(f'{histogram}_bucket', where, *also, by=('le', *by))}) >= 0"


def mean(histogram: str, where: str = GATEWAY, *also: str, by: tuple[str, ...] = ()) -> str:
    """The mean of what a histogram saw."""
    return ratio(*(rate(f"{histogram}_{part}", where, *also, by=by) for part in ("sum", "count")))


def ratio(part: str, whole: str) -> str:
    """Part by whole; nothing where the whole is 0, instead of the NaN that would be."""
    return f"{part} / ({whole} > 0)"


def or_zero(expression: str, like: str) -> str:
    """The expression, and 0 where it has no series and `like` has: nothing counted yet is no gap."""
    return f"({expression} or 0 * {like})"


def bad_answers(by: tuple[str, ...] = ()) -> str:
    """Answers a second that failed: a 5xx, or a 200 that broke off afterwards."""
    everything = rate("nproxy_requests_total", MODEL, ANSWERS, by=by)
    refused = or_zero(rate("nproxy_requests_total", MODEL, ANSWERS, 'code=~"5.."', by=by), everything)
    broken = or_zero(rate("nproxy_broken_answers_total", MODEL, ANSWERS, by=by), everything)
    return f"{refused} + {broken}"


def error_ratio(by: tuple[str, ...] = ()) -> str:
    """The share of answers that failed."""
    return ratio(f"({bad_answers(by)})", rate("nproxy_requests_total", MODEL, ANSWERS, by=by))
