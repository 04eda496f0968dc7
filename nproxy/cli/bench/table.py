"""A report as lines for people: the same on a terminal and in a pipe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nproxy.cli.bench.measures import MEASURES
from nproxy.cli.bench.report import Condition, Report

_WIDTH = 32
"""The width of the first column."""


def lines(report: Report) -> Iterator[str]:
    """Yield the report, line by line."""
    yield f"{report.url}, {report.model}"
    yield described(report.conditions)
    yield ""
    requests, rates = report.requests, report.per_second
    unfinished = f", {requests.unfinished} cut off" if requests.unfinished else ""
    early = " (ended early)" if report.interrupted else ""
    yield _row("requests", f"{requests.ok} answered, {requests.failed} failed{unfinished}")
    tail = f"{report.tail_seconds:.2f} s of it after the last request was sent"
    yield _row("wall time", f"{report.wall_seconds:.2f} s{early}, {tail}")
    if requests.ok:
        yield _row("requests/s", f"{rates.requests:,.2f}")
        if (good := report.goodput) is not None:
            yield _row("requests/s within bounds", f"{good.per_second:,.2f} ({good.share:.1%} of all)")
        yield _row("choices/s", f"{rates.choices:,.2f}")
        yield _row("completion tokens/s", f"{rates.completion_tokens:,.1f} ({_counted(report)})")
        yield _row("tokens", _tokens(report))
    late = report.client.late_p99
    kept = "" if late is None else f", 1 in 100 requests sent {milliseconds(late)} ms or more late"
    yield _row("this client", f"{report.client.cpu_share:.0%} of a core{kept}")
    if report.latencies:
        yield ""
        yield from latencies(report)
    if report.errors:
        yield ""
        yield "failed"
        yield from (f"  {errors.count:>6}  {errors.kind}: {errors.example}" for errors in report.errors)
    yield from ("", *(f"warning: {words}" for words in report.warnings)) if report.warnings else ()


def latencies(report: Report) -> Iterator[str]:
    """Yield the measures, in milliseconds."""
    yield _cells("milliseconds", ("p50", "p90", "p99", "max", "count"))
    for measure in MEASURES:
        if (spread := report.latencies.get(measure.name)) is not None:
            times = [milliseconds(seconds) for seconds in (spread.p50, spread.p90, spread.p99, spread.max)]
            yield _cells(measure.title, (*times, f"{spread.count:,}")) + ("" if spread.exact else "  (within 0.5 %)")


def described(conditions: Mapping[str, Condition]) -> str:
    """Return the conditions on one line."""
    return ", ".join(
        name.replace("_", " ") + ("" if value is True else f" {condition_text(value)}")
        for name, value in conditions.items()
        if value is not None and value is not False
    )


def condition_text(value: Condition) -> str:
    """Return a condition's value, numbers without trailing zeros."""
    return "not set" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def milliseconds(seconds: float) -> str:
    """Return milliseconds with as many digits as are significant."""
    value = 1000 * seconds
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _tokens(report: Report) -> str:
    tokens = report.tokens
    completion = f"{tokens.completion / max(1, report.choices):,.1f} a choice"
    if not tokens.by_usage:
        return completion
    cached = f" ({tokens.cached / tokens.prompt:.0%} of them cached)" if tokens.cached else ""
    return f"{tokens.prompt / tokens.by_usage:,.1f} of prompt a request{cached}, {completion}"


def _counted(report: Report) -> str:
    if not report.tokens.by_chunks:
        return "by usage"
    return "by usage and by chunks" if report.tokens.by_usage else "by chunks"


def _row(name: str, words: str) -> str:
    return f"{name:<{_WIDTH}} {words}"


def _cells(name: str, cells: Sequence[str]) -> str:
    return _row(name, "".join(f" {cell:>8}" for cell in cells))
