"""`nproxy probe`: parses URL and key as the settings file would, holds the interview, prints the report."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Literal

import click
from rich.console import Console

from nproxy.cli.printable import printable
from nproxy.cli.probe import client
from nproxy.cli.probe.entry import as_yaml
from nproxy.cli.probe.findings import Report
from nproxy.cli.probe.interview import Plan, ProbeFailed, conduct, interview
from nproxy.cli.probe.questions import Question, Reply
from nproxy.cli.probe.report_json import as_json
from nproxy.cli.probe.table import show
from nproxy.cli.target import parse_target

OutputForm = Literal["table", "json", "yaml"]


def run(url: str, *, model: str | None, api_key: str | None, seconds: float, form: OutputForm) -> None:
    """Probe and print. Raises WrongUse and ProbeFailed, whose messages never contain the key."""
    target = parse_target(url, api_key)
    plan = Plan(nonce=secrets.token_hex(4), model=model)
    try:
        with client.opened(target, seconds) as asking:
            report = _with_progress(str(target), plan, asking.ask)
    except ProbeFailed as error:
        raise ProbeFailed(f"{target}: {error}") from error
    match form:
        case "json":
            click.echo(as_json(report))
        case "yaml":
            click.echo(as_yaml(report, target.replica, None if target.key is None else api_key, plan.widest))
        case "table":
            show(report, Console())


def _with_progress(url: str, plan: Plan, ask: Callable[[Question], Reply]) -> Report:
    """Hold the interview; on a terminal, show the number of the current question."""
    screen = Console(stderr=True)
    if not screen.is_terminal:
        return conduct(url, interview(plan), ask)
    with screen.status("") as line:
        count = 0

        def counted(question: Question) -> Reply:
            nonlocal count
            count += 1
            line.update(f"probing {printable(url)}: question {count}")
            return ask(question)

        return conduct(url, interview(plan), counted)
