"""`nproxy bench`: makes a plan from the options, measures, and prints the report."""

from __future__ import annotations

import errno
import os
import platform
from datetime import UTC, datetime
from pathlib import Path

import click
import uvloop
from rich.console import Console

from nproxy import __version__
from nproxy.cli.bench import client, compare, table
from nproxy.cli.bench.doubts import doubts
from nproxy.cli.bench.early_end import EarlyEnd
from nproxy.cli.bench.failed import BenchFailed
from nproxy.cli.bench.given import Given
from nproxy.cli.bench.measuring import Measuring, Plan, until_set
from nproxy.cli.bench.planning import conditions, dialect_of, plan_of, prompts_of
from nproxy.cli.bench.progress import shown
from nproxy.cli.bench.prompts import Prompts
from nproxy.cli.bench.report import Client, Report
from nproxy.cli.bench.schedule import Open
from nproxy.cli.open_files import take_all_files
from nproxy.cli.printable import printable
from nproxy.cli.target import Target, parse_target
from nproxy.cli.wrong_use import FAILED, WrongUse


def run(given: Given) -> int:
    """Measure and print; returns the exit code. Raises WrongUse and BenchFailed; messages never contain the key."""
    target = parse_target(given.url, given.api_key)
    prompts = prompts_of(given)
    before = None if given.against is None else compare.read_report(given.against)
    if given.save is not None and (fault := _unwritable(given.save)) is not None:
        raise WrongUse(f"--save: {given.save}: {os.strerror(fault)}")
    take_all_files()
    try:
        report, number = uvloop.run(_measured(given, target, prompts))
    except BenchFailed as error:
        raise BenchFailed(f"{target}: {error}") from error
    if given.save is not None:
        _save(report, given.save)  # first: nobody may read what is printed
    if given.as_json:
        click.echo(report.model_dump_json(indent=2))
    else:
        click.echo("\n".join(table.lines(report)))
    if before is not None and given.against is not None:
        click.echo("\n" + "\n".join(compare.lines(before, report, given.against.name)), err=given.as_json)
    if number is not None:
        return 128 + number
    return 0 if report.requests.ok else FAILED


async def _measured(given: Given, target: Target, prompts: Prompts) -> tuple[Report, int | None]:
    """Return the report, and the signal that ended the measurement early, None if none did."""
    early_end = EarlyEnd()
    async with client.opened(target, dialect_of(given), given.timeout) as asking:
        model = given.model or await asking.first_model()
        plan = plan_of(given, prompts, model)
        measuring = Measuring(plan, asking.ask, client.clock)
        started = datetime.now(UTC)

        async def whole() -> None:
            if given.warmup and (failure := await measuring.warm_up()) is not None:
                raise BenchFailed(f"no warm-up request succeeded: {failure.kind}: {failure.words}")
            await measuring.run()

        with early_end.heard():
            async with shown(measuring, plan.extent, Console(stderr=True), client.clock):
                early = await until_set(whole(), early_end.event)
    report = _report(given, plan, measuring, str(target), printable(model), started, interrupted=early)
    return report, early_end.number if early else None


def _report(
    given: Given, plan: Plan, measuring: Measuring, url: str, model: str, started: datetime, *, interrupted: bool
) -> Report:
    tally, seconds, tail = measuring.tally, measuring.wall_seconds, measuring.tail_seconds
    own = Client(
        nproxy=__version__,
        python=platform.python_version(),
        cores=os.cpu_count() or 1,
        cpu_share=measuring.cpu_share,
        late_p99=tally.late(0.99) if isinstance(plan.load, Open) else None,
    )
    requests, tokens = tally.requests(measuring.begun), tally.tokens()
    return Report(
        started=started.isoformat(timespec="seconds"),
        url=url,
        model=model,
        conditions=conditions(given, plan),
        interrupted=interrupted,
        wall_seconds=seconds,
        tail_seconds=tail,
        requests=requests,
        choices=tally.choices,
        tokens=tokens,
        per_second=tally.rates(seconds),
        goodput=tally.goodput(seconds),
        latencies=tally.latencies(),
        errors=tally.errors(),
        client=own,
        warnings=tuple(doubts(own, requests, tokens, tally.tokens_per_chunk, tail / seconds if seconds else 0.0)),
    )


def _unwritable(file: Path) -> int | None:
    """Return the error number that writing the file would end with, as far as can be known before."""
    if not file.parent.is_dir():
        return errno.ENOENT
    return None if os.access(file if file.exists() else file.parent, os.W_OK) else errno.EACCES


def _save(report: Report, file: Path) -> None:
    try:
        file.write_text(report.model_dump_json(indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise BenchFailed(f"--save: {file}: {error.strerror}") from None
