"""Expressions, and how their series are called in a legend."""

from __future__ import annotations

from dataclasses import dataclass

from grafana.source.promql import GATEWAY, over, quantile, rate, series


@dataclass(frozen=True, slots=True)
class Query:
    """An expression, and how its series are called: text with {{label}}s."""

    expression: str
    legend: str = ""


def rates(metric: str, where: str = GATEWAY, *also: str, by: tuple[str, ...]) -> Query:
    """How much a counter grows a second, a series for each value of these labels."""
    return Query(rate(metric, where, *also, by=by), _labels(by))


def gauges(operator: str, metric: str, where: str = GATEWAY, *also: str, by: tuple[str, ...]) -> Query:
    """How a gauge stands, aggregated over all labels but these."""
    return Query(over(operator, series(metric, where, *also), *by), _labels(by))


def quantiles(
    histogram: str,
    where: str = GATEWAY,
    *also: str,
    by: tuple[str, ...] = (),
    shares: tuple[float, ...] = (0.5, 0.95, 0.99),
) -> list[Query]:
    """Quantiles of a histogram, for each value of these labels. A legend names the share where there are several."""
    return [
        Query(
            quantile(share, histogram, where, *also, by=by),
            " ".join(filter(None, (_labels(by), f"p{share * 100:.0f}" if len(shares) > 1 else ""))),
        )
        for share in shares
    ]


def _labels(by: tuple[str, ...]) -> str:
    return " ".join(f"{{{{{label}}}}}" for label in by)
