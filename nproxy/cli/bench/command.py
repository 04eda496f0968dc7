"""`nproxy bench`: what was typed made into a plan, the measurement, and the report in the form asked for."""

from __future__ import annotations

import asyncio
import os
import platform
import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import click
import uvloop
from rich.console import Console

from nproxy import __version__
from nproxy.cli.bench import client, compare, table
from nproxy.cli.bench.asking import Form
from nproxy.cli.bench.doubts import doubts
from nproxy.cli.bench.failed import BenchFailed
from nproxy.cli.bench.given import CONCURRENCY, MAX_TOKENS, REQUESTS, WORDS, Given
from nproxy.cli.bench.measuring import Measuring, Plan, until_told
from nproxy.cli.bench.progress import shown
from nproxy.cli.bench.prompts import Lines, Prompts, RandomWords, Same, read_lines
from nproxy.cli.bench.report import Client, Condition, Report
from nproxy.cli.bench.schedule import Closed, Extent, Load, Open
from nproxy.cli.open_files import take_all_files
from nproxy.cli.printable import printable
from nproxy.cli.target import parse_target
from nproxy.cli.wrong_use import FAILED, WrongUse
from nproxy.config import Replica
from nproxy.openai.dialect import Dialect
from nproxy.openai.jsonvalue import JSON


def run(given: Given) -> int:
    """Measure and print; gives the exit code. Raises WrongUse and BenchFailed, whose messages never hold the key."""
    replica, key = parse_target(given.url, given.api_key)
    prompts = _prompts(given, given.seed if given.seed is not None else secrets.randbits(31))
    before = None if given.against is None else compare.read_report(given.against)
    if given.save is not None and not os.access(given.save if given.save.exists() else given.save.parent, os.W_OK):
        raise WrongUse(f"--save: {given.save} cannot be written")
    take_all_files()
    try:
        report, number = uvloop.run(_measured(given, replica, key, prompts))
    except BenchFailed as error:
        raise BenchFailed(f"{replica}: {error}") from error
    if given.as_json:
        click.echo(report.model_dump_json(indent=2))
    else:
        click.echo("\n".join(table.lines(report)))
    if before is not None and given.against is not None:
        click.echo("\n" + "\n".join(compare.lines(before, report, given.against.name)), err=given.as_json)
    if given.save is not None:
        _save(report, given.save)
    if number is not None:
        return 128 + number
    return 0 if report.requests.ok else FAILED


@dataclass(slots=True)
class _Told:
    """The user's wish to end early: Ctrl-C or SIGTERM. A second one ends the process at once."""

    event: asyncio.Event = field(default_factory=asyncio.Event)
    number: int | None = None

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Hear signals while the block runs."""
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGINT, signal.SIGTERM)

        def hear(number: int) -> None:
            self.number = number
            self.event.set()
            for each in numbers:
                loop.remove_signal_handler(each)

        for number in numbers:
            loop.add_signal_handler(number, hear, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)


async def _measured(given: Given, replica: Replica, key: str | None, prompts: Prompts) -> tuple[Report, int | None]:
    """The report, and the signal that ended the measurement early, if one did."""
    dialect = Dialect.CHAT if given.chat else Dialect.COMPLETIONS
    told = _Told()
    async with client.opened(replica, key, dialect, given.timeout) as asking:
        model = given.model or await asking.first_model()
        plan = _plan(given, prompts, model)
        measuring = Measuring(plan, asking.ask, client.clock)
        started = datetime.now(UTC)

        async def whole() -> None:
            if given.warmup and (failure := await measuring.warm_up()) is not None:
                raise BenchFailed(f"no warm-up request was answered: {failure.kind}: {failure.words}")
            await measuring.run()

        with told.heard():
            async with shown(measuring, plan.extent, Console(stderr=True), client.clock):
                early = await until_told(whole(), told.event)
    report = _report(given, plan, measuring, str(replica), printable(model), started, interrupted=early)
    return report, told.number if early else None


def _plan(given: Given, prompts: Prompts, model: str) -> Plan:
    load: Load = Closed(given.concurrency or CONCURRENCY)
    if given.rate is not None:
        load = Open(given.rate, given.burstiness or 1.0)
    requests = given.requests
    if requests is None and given.seconds is None:
        requests = len(prompts.bodies) if isinstance(prompts, Lines) else REQUESTS
    typed: dict[str, JSON] = {
        "model": given.model,
        "n": given.n,
        "max_tokens": given.max_tokens,
        "stream": given.stream,
        "temperature": given.temperature,
        "ignore_eos": given.ignore_eos or None,
    }
    return Plan(
        load=load,
        extent=Extent(requests, given.seconds),
        warmup=given.warmup,
        form=Form(
            prompts=prompts,
            typed={name: value for name, value in typed.items() if value is not None},
            defaults={"model": model, "n": 1, "max_tokens": MAX_TOKENS, "stream": True},
            seed=given.seed,
        ),
        seed=given.seed if given.seed is not None else secrets.randbits(31),
    )


def _prompts(given: Given, seed: int) -> Prompts:
    dialect = Dialect.CHAT if given.chat else Dialect.COMPLETIONS
    if given.dataset is not None:
        return read_lines(given.dataset, dialect)
    if given.prompt is not None:
        return Same(given.prompt, dialect)
    return RandomWords(given.prompt_tokens or WORDS, given.shared_prefix or 0, seed, dialect)


def _conditions(given: Given, plan: Plan) -> dict[str, Condition]:
    """What was asked for. With a dataset, its lines say what was not typed."""
    asked = dict(plan.form.typed) if given.dataset is not None else {**plan.form.defaults, **plan.form.typed}
    load = plan.load
    closed, open_ = load if isinstance(load, Closed) else None, load if isinstance(load, Open) else None
    n, max_tokens, stream = asked.get("n"), asked.get("max_tokens"), asked.get("stream")
    return {
        "endpoint": str(Dialect.CHAT if given.chat else Dialect.COMPLETIONS),
        "n": n if isinstance(n, int) else None,
        "prompts": str(plan.form.prompts),
        "max_tokens": max_tokens if isinstance(max_tokens, int) else None,
        "stream": stream if isinstance(stream, bool) else None,
        "temperature": given.temperature,
        "ignore_eos": given.ignore_eos,
        "seed": given.seed,
        "concurrency": closed.concurrency if closed else None,
        "rate": open_.rate if open_ else None,
        "burstiness": open_.burstiness if open_ else None,
        "requests": plan.extent.requests,
        "seconds": plan.extent.seconds,
        "warmup": plan.warmup,
    }


def _report(
    given: Given, plan: Plan, measuring: Measuring, url: str, model: str, started: datetime, *, interrupted: bool
) -> Report:
    tally, seconds = measuring.tally, measuring.wall_seconds
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
        conditions=_conditions(given, plan),
        interrupted=interrupted,
        wall_seconds=seconds,
        tail_seconds=measuring.tail_seconds,
        requests=requests,
        choices=tally.choices,
        tokens=tokens,
        per_second=tally.rates(seconds),
        latencies=tally.latencies(),
        errors=tally.errors(),
        client=own,
        warnings=tuple(doubts(own, requests, tokens, tally.tokens_per_chunk)),
    )


def _save(report: Report, file: Path) -> None:
    try:
        file.write_text(report.model_dump_json(indent=2) + "\n")
    except OSError as error:
        raise BenchFailed(f"--save: {file}: {error.strerror}") from None
