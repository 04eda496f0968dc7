"""The options of `nproxy chat`; the implementation is imported when it runs."""

from __future__ import annotations

import click

from nproxy.cli.chat.settings import DEFAULT_URL, WIDEST, Settings
from nproxy.cli.typed import TEMPERATURE, TEXT, key_option, model_option, timeout_option
from nproxy.cli.wrong_use import FAILED, WRONG_USE, WrongUse


@click.command()
@click.argument("prompt", required=False, type=TEXT)
@click.option("--url", metavar="URL", default=DEFAULT_URL, show_default=True, help="Base URL of the server.")
@model_option()
@click.option(
    "-n", "--n", metavar="N", type=click.IntRange(1, WIDEST), default=4, show_default=True, help="Number of answers."
)
@click.option(
    "--temperature", metavar="T", type=TEMPERATURE, help="Sampling temperature; 0 is greedy.  [default: the server's]"
)
@click.option("--seed", metavar="S", type=int, help="Seed that makes answers repeatable.")
@click.option("--max-tokens", metavar="N", type=click.IntRange(1), help="Maximum tokens per answer.")
@click.option("--system", metavar="TEXT", type=TEXT, help="The system prompt.")
@key_option()
@click.option("--json", "json_form", is_flag=True, help="Print the answers as one line of JSON.")
@timeout_option("seconds", 600.0, "the server may be silent")
@click.pass_context
def chat(
    context: click.Context,
    /,
    *,
    prompt: str | None,
    url: str,
    model: str | None,
    n: int,
    temperature: float | None,
    seed: int | None,
    max_tokens: int | None,
    system: str | None,
    api_key: str | None,
    json_form: bool,
    seconds: float,
) -> None:
    """Get n answers side by side from any server.

    Talks to any server of the OpenAI API. Without PROMPT, it reads lines from the terminal one after the other, and the
    conversation continues from the first answer, or from the one that /pick names; /help lists the other commands. In a
    pipe it takes one prompt, PROMPT or else standard input, and prints the answers one after the other.

    \b
    Examples:
      nproxy chat
      nproxy chat -n 8 --temperature 1 "Name a color."
      nproxy chat --url http://127.0.0.1:11434/v1 --model llama3.2 --seed 7
      echo "Name a color." | nproxy chat -n 2
      nproxy chat --json --max-tokens 20 "Name a color." | jq -r '.choices[].content'
      nproxy chat --api-key '${OPENAI_API_KEY}' --url https://api.openai.com/v1 --model gpt-4o-mini
    """
    from nproxy.cli.chat import command
    from nproxy.cli.chat.failed import ChatFailed

    settings = Settings(model or "", n, temperature, seed, max_tokens, system)
    try:
        code = command.run(prompt, settings, url=url, api_key=api_key, seconds=seconds, json_form=json_form)
    except (WrongUse, ChatFailed) as error:
        click.echo(f"nproxy: {error}", err=True)
        code = WRONG_USE if isinstance(error, WrongUse) else FAILED
    context.exit(code)
