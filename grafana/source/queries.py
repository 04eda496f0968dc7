"""Expressions with the names of their series in the legend."""

from __future__ import annotations

from dataclasses import dataclass

from grafana.source.promql import GATEWAY, over, quantile, rate, series


@dataclass(frozen=True, slots=True)
class Query:
    """An expression, and the name of its series: text with {{label}}s."""

    expression: str
    legend: str = ""


def rates(metric: str, where: str = GATEWAY, *also: str, by: tuple[str, ...]) -> Query:
    """Return a counter's growth per second, one series per value of these labels."""
    return Query(rate(metric, where, *also, by=by), _labels(by))


def gauges(operator: str, metric: str, where: str = GATEWAY, *also: str, by: tuple[str, ...]) -> Query:
    """Return a gauge, aggregated over all labels except `by`."""
    return Query(over(operator, series(metric, where, *also), *by), _labels(by))


def quantiles(
    histogram: str,
    where: str = GATEWAY,
    *also: str,
    by: tuple[str, ...] = (),
    shares: tuple[float, ...] = (0.5, 0.95, 0.99),
) -> list[Query]:
    """Return quantiles of a histogram per value of these labels. With several shares, the legend names the share."""
    return [
        Query(
            quantile(share, histogram, where, *also, by=by),
            " ".join(filter(None, (_labels(by), f"p{share * 100:.0f}" if len(shares) > 1 else ""))),
        )
        for share in shares
    ]


def _labels(by: tuple[str, ...]) -> str:
    return " ".join(f"{{{{{label}}}}}" for label in by)
