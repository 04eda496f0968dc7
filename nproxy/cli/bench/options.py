"""The options of `nproxy bench`; the implementation is imported when it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from nproxy.cli.bench.bounds import bounds_of
from nproxy.cli.bench.given import CONCURRENCY, MAX_TOKENS, REQUESTS, WORDS, Given
from nproxy.cli.typed import SECONDS, TEMPERATURE, TEXT, Finite, key_option, model_option, timeout_option
from nproxy.cli.wrong_use import FAILED, WRONG_USE, WrongUse

_FILE = click.Path(path_type=Path, dir_okay=False)
_COUNT = click.IntRange(min=1)
_RATE = Finite(min=1e-6, max=1e6)
_BURSTINESS = Finite(min=1e-3, max=1e3)


@click.command()
@click.argument("url")
@click.option("-n", "--n", metavar="N", type=_COUNT, help="Choices of a request.  [default: 1]")
@click.option(
    "--concurrency", metavar="K", type=_COUNT, help=f"Requests in flight at any time.  [default: {CONCURRENCY}]"
)
@click.option("--rate", metavar="R", type=_RATE, help="Requests a second instead, whatever becomes of others.")
@click.option(
    "--burstiness", metavar="B", type=_BURSTINESS, help="With --rate: 1 is Poisson, less in bursts.  [default: 1]"
)
@click.option("--requests", metavar="N", type=_COUNT, help=f"Requests to send.  [default: {REQUESTS}, or the dataset]")
@click.option("--seconds", metavar="S", type=SECONDS, help="Send for so long; those on their way are awaited.")
@click.option(
    "--warmup",
    metavar="N",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    help="Requests before it counts.",
)
@click.option("--prompt", metavar="TEXT", type=TEXT, help="The same prompt in every request.")
@click.option(
    "--prompt-tokens", metavar="N", type=_COUNT, help=f"Random words, other ones each time.  [default: {WORDS}]"
)
@click.option("--shared-prefix", metavar="N", type=_COUNT, help="Of them, so many the same in every prompt.")
@click.option("--dataset", metavar="FILE", type=_FILE, help='JSON lines: bodies of requests, or {"prompt": TEXT}.')
@click.option("--max-tokens", metavar="N", type=_COUNT, help=f"Most tokens of a choice.  [default: {MAX_TOKENS}]")
@click.option("--ignore-eos", is_flag=True, help="Every choice as long as it may be, where the server can.")
@click.option("--stream/--no-stream", default=None, help="As events, or in one piece.  [default: stream]")
@click.option("--temperature", metavar="T", type=TEMPERATURE, help="0 is greedy.  [default: the server's]")
@click.option("--seed", metavar="S", type=click.IntRange(min=0), help="The same prompts, times and seeds once more.")
@click.option("--chat/--completions", default=True, help="Which endpoint.  [default: chat]")
@model_option()
@key_option()
@timeout_option("timeout", 600.0, "one answer may take")
@click.option(
    "--goodput",
    metavar="NAME:MS",
    callback=bounds_of,
    multiple=True,
    help="Count requests within this: ttft, tpot or e2el, in milliseconds.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--save", metavar="FILE", type=_FILE, help="Write the report as JSON.")
@click.option("--compare", "against", metavar="FILE", type=_FILE, help="Ratios to a report that was saved.")
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
