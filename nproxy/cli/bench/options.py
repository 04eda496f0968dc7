"""The options of `nproxy bench`; the implementation is imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from nproxy.cli.bench.bounds import bounds_of
from nproxy.cli.bench.given import CONCURRENCY, MAX_TOKENS, REQUESTS, WORDS, Given
from nproxy.cli.typed import SECONDS, TEMPERATURE, TEXT, FilePath, Finite, key_option, model_option, timeout_option
from nproxy.cli.wrong_use import FAILED, WRONG_USE, WrongUse

_FILE = FilePath(path_type=Path, dir_okay=False)
_COUNT = click.IntRange(min=1)
_RATE = Finite(min=1e-6, max=1e6)
_BURSTINESS = Finite(min=1e-3, max=1e3)


@click.command()
@click.argument("url")
@click.option("-n", "--n", metavar="N", type=_COUNT, help="Choices per request.  [default: 1]")
@click.option("--concurrency", metavar="K", type=_COUNT, help=f"Requests kept in flight.  [default: {CONCURRENCY}]")
@click.option("--rate", metavar="R", type=_RATE, help="Send R requests per second, however many are in flight.")
@click.option(
    "--burstiness",
    metavar="B",
    type=_BURSTINESS,
    help="With --rate: 1 is Poisson arrivals, lower is burstier.  [default: 1]",
)
@click.option(
    "--requests", metavar="N", type=_COUNT, help=f"Requests to send.  [default: {REQUESTS}, or the whole dataset]"
)
@click.option(
    "--seconds", metavar="S", type=SECONDS, help="Send requests for S seconds, then wait for those in flight."
)
@click.option(
    "--warmup",
    metavar="N",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="Requests to send before the measurement.",
)
@click.option("--prompt", metavar="TEXT", type=TEXT, help="Send this prompt in every request.")
@click.option(
    "--prompt-tokens",
    metavar="N",
    type=_COUNT,
    help=f"Send N random words, different in each prompt.  [default: {WORDS}]",
)
@click.option("--shared-prefix", metavar="N", type=_COUNT, help="Begin every prompt with the same N of these words.")
@click.option(
    "--dataset", metavar="FILE", type=_FILE, help='Requests as JSON lines: request bodies, or {"prompt": TEXT}.'
)
@click.option("--max-tokens", metavar="N", type=_COUNT, help=f"Maximum tokens per choice.  [default: {MAX_TOKENS}]")
@click.option("--ignore-eos", is_flag=True, help="Generate every choice up to --max-tokens, if the server supports it.")
@click.option("--stream/--no-stream", default=None, help="Request streams, or whole answers.  [default: stream]")
@click.option(
    "--temperature", metavar="T", type=TEMPERATURE, help="Sampling temperature; 0 is greedy.  [default: the server's]"
)
@click.option(
    "--seed",
    metavar="S",
    type=click.IntRange(min=0),
    help="Seed that makes prompts, send times and choices repeatable.",
)
@click.option("--chat/--completions", default=True, help="Endpoint to call.  [default: chat]")
@model_option()
@key_option()
@timeout_option("timeout", 600.0, "one answer may take")
@click.option(
    "--goodput",
    metavar="NAME:MS",
    callback=bounds_of,
    multiple=True,
    help="Count the requests within this bound on ttft, tpot or e2el, in milliseconds; repeatable.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--save", metavar="FILE", type=_FILE, help="Write the report to FILE as JSON.")
@click.option("--compare", "against", metavar="FILE", type=_FILE, help="Compare with a report that --save wrote.")
@click.pass_context
def bench(context: click.Context, /, **typed: Any) -> None:
    """Load a server and report throughput and latencies.

    URL is the base URL of any OpenAI-compatible server, such as http://127.0.0.1:8000/v1, or unix:/path of a socket.
    With --concurrency a request is sent when another has ended: that shows what a server can do. With --rate requests
    are sent at random times, and latencies count from the moment when a request was due: that shows how long clients
    wait.

    Ctrl-C ends it early, prints what was measured until then, and exits with 130. Otherwise the exit code is 0, or 1 if
    no request was answered.

    \b
    Examples:
      nproxy bench http://127.0.0.1:8000 -n 8
      nproxy bench http://127.0.0.1:8000 -n 8 --concurrency 32 --seconds 60 --save before.json
      nproxy bench http://127.0.0.1:8000 -n 8 --concurrency 32 --seconds 60 --compare before.json
      nproxy bench http://127.0.0.1:8000 --rate 5 --seconds 120 --prompt-tokens 1000 --shared-prefix 800
      nproxy bench http://127.0.0.1:8000 --rate 5 --goodput ttft:500 --goodput e2el:3000
      nproxy bench http://127.0.0.1:8000 --dataset requests.jsonl --json | jq .per_second
    """
    given = Given(**typed)
    given.check()
    from nproxy.cli.bench import command
    from nproxy.cli.bench.failed import BenchFailed

    try:
        code = command.run(given)
    except (WrongUse, BenchFailed) as error:
        click.echo(f"nproxy: {error}", err=True)
        code = WRONG_USE if isinstance(error, WrongUse) else FAILED
    context.exit(code)
