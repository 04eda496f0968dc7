"""Two reports side by side, with the ratios of now to before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from nproxy.cli.bench.measures import MEASURES
from nproxy.cli.bench.report import Report
from nproxy.cli.bench.table import condition_text
from nproxy.cli.wrong_use import WrongUse


class Row(NamedTuple):
    """A figure of both runs; times are in milliseconds."""

    title: str
    before: float
    now: float

    @property
    def ratio(self) -> float | None:
        """Now divided by before; None if before is 0."""
        return self.now / self.before if self.before else None


def read_report(file: Path) -> Report:
    """Read a file that --save wrote. Raises WrongUse."""
    try:
        return Report.model_validate_json(file.read_bytes())
    except OSError as error:
        raise WrongUse(f"--compare: {file}: {error.strerror}") from None
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        what = ": ".join(filter(None, (".".join(map(str, first["loc"])), first["msg"])))
        raise WrongUse(f"--compare: {file} was not written by --save: {what}") from None


def rows(before: Report, now: Report) -> Iterator[Row]:
    """Yield the rates, then p50 and p99 of every measure that both runs have."""
    old, new = before.per_second, now.per_second
    yield Row("requests/s", old.requests, new.requests)
    if before.goodput is not None and now.goodput is not None:
        yield Row("requests/s within bounds", before.goodput.per_second, now.goodput.per_second)
    yield Row("choices/s", old.choices, new.choices)
    yield Row("completion tokens/s", old.completion_tokens, new.completion_tokens)
    for measure in MEASURES:
        was, is_ = before.latencies.get(measure.name), now.latencies.get(measure.name)
        if was is not None and is_ is not None:
            yield Row(f"{measure.title}, p50 ms", 1000 * was.p50, 1000 * is_.p50)
            yield Row(f"{measure.title}, p99 ms", 1000 * was.p99, 1000 * is_.p99)


def lines(before: Report, now: Report, name: str) -> Iterator[str]:
    """Yield the lines of the comparison; first how the runs' conditions differ, which may be the reason."""
    yield f"compared with {name} of {before.started}, {before.url}, {before.model}"
    yield from (f"differs: {words}" for words in differences(before, now))
    yield f"{'':<42}{'before':>12}{'now':>12}{'ratio':>8}"
    for row in rows(before, now):
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        yield f"{row.title:<42}{row.before:>12,.2f}{row.now:>12,.2f}{ratio:>8}"


def differences(before: Report, now: Report) -> Iterator[str]:
    """Yield conditions that differ, and failures, without which times look better than they are."""
    for name in dict.fromkeys((*before.conditions, *now.conditions)):
        was, is_ = before.conditions.get(name), now.conditions.get(name)
        if was != is_:
            yield f"{name}: {condition_text(was)} before, {condition_text(is_)} now"
    if before.requests.failed or now.requests.failed:
        yield f"failed requests: {before.requests.failed} before, {now.requests.failed} now"
