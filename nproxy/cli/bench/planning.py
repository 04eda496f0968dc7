"""Converts the options to a plan, and to the conditions in the report."""

from __future__ import annotations

import secrets

from nproxy.cli.bench.asking import Form
from nproxy.cli.bench.given import CONCURRENCY, MAX_TOKENS, REQUESTS, WORDS, Given
from nproxy.cli.bench.measuring import Plan
from nproxy.cli.bench.prompts import Lines, Prompts, RandomWords, Same, read_lines
from nproxy.cli.bench.report import Condition
from nproxy.cli.bench.schedule import Closed, Extent, Load, Open
from nproxy.openai.dialect import Dialect
from nproxy.openai.jsonvalue import JSON


def dialect_of(given: Given) -> Dialect:
    """Return the endpoint that is asked."""
    return Dialect.CHAT if given.chat else Dialect.COMPLETIONS


def prompts_of(given: Given) -> Prompts:
    """Return the prompts of the requests. Raises WrongUse for a file that is not a dataset."""
    dialect = dialect_of(given)
    if given.dataset is not None:
        return read_lines(given.dataset, dialect)
    if given.prompt is not None:
        return Same(given.prompt, dialect)
    return RandomWords(given.prompt_tokens or WORDS, given.shared_prefix or 0, _seed(given), dialect)


def plan_of(given: Given, prompts: Prompts, model: str) -> Plan:
    """Return the plan. model: for requests that name none."""
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
    form = Form(
        prompts=prompts,
        typed={name: value for name, value in typed.items() if value is not None},
        defaults={"model": model, "n": 1, "max_tokens": MAX_TOKENS, "stream": True},
        seed=given.seed,
    )
    extent = Extent(requests, given.seconds)
    return Plan(load, extent, given.warmup, form, _seed(given), given.goodput)


def conditions(given: Given, plan: Plan) -> dict[str, Condition]:
    """Return the conditions; None if one does not apply, or if the lines of a dataset decide it."""
    lines = given.dataset is not None
    match plan.load:
        case Closed(concurrency):
            load: dict[str, Condition] = {"concurrency": concurrency, "rate": None, "burstiness": None}
        case Open(rate, burstiness):
            load = {"concurrency": None, "rate": rate, "burstiness": burstiness}
    return {
        "endpoint": str(dialect_of(given)),
        "n": given.n or (None if lines else 1),
        "prompts": str(plan.form.prompts),
        "max_tokens": given.max_tokens or (None if lines else MAX_TOKENS),
        "stream": None if lines and given.stream is None else given.stream is not False,
        "temperature": given.temperature,
        "ignore_eos": given.ignore_eos,
        "seed": given.seed,
        **load,
        "requests": plan.extent.requests,
        "seconds": plan.extent.seconds,
        "warmup": plan.warmup,
        "goodput": " ".join(map(str, plan.goodput)) or None,
    }


def _seed(given: Given) -> int:
    """Return the seed of everything random: a new one each time, unless one was given."""
    return given.seed if given.seed is not None else secrets.randbits(31)
