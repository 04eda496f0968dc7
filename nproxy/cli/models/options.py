"""The options of `nproxy models list|pull|remove`; the implementation is imported when they run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import click

from nproxy.cli.wrong_use import FAILED, WRONG_USE, WrongUse


@click.group()
def models() -> None:
    """List, fetch and remove the built-in engine's models.

    \b
    Examples:
      nproxy models list
      nproxy models pull
      nproxy models pull HuggingFaceTB/SmolLM2-360M-Instruct
      nproxy models remove HuggingFaceTB/SmolLM2-360M-Instruct
    """


@models.command("list")
@click.option("--json", "json_form", is_flag=True, help="Print the models as JSON, with sizes in bytes.")
@click.pass_context
def list_models(context: click.Context, /, *, json_form: bool) -> None:
    """List the models on this machine.

    Shows the name for `nproxy serve --model`, the size, and the place of each model. The one with the star is served if
    no other is named.

    \b
    Examples:
      nproxy models list
      nproxy models list --json | jq -r '.models[].name'
    """
    from nproxy.cli.models import command

    with _errors_printed(context):
        command.show(json_form=json_form)


@models.command()
@click.argument("name", required=False)
@click.pass_context
def pull(context: click.Context, /, *, name: str | None) -> None:
    """Fetch a model, and print its path.

    NAME is the default model (also used if NAME is omitted), a model of the Hugging Face hub, or one GGUF file there.
    Files that are complete stay as they are; a download that broke off is resumed, file by file.

    \b
    Examples:
      nproxy models pull
      nproxy models pull Qwen/Qwen3-0.6B
      nproxy models pull Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf
      HF_TOKEN=hf_... nproxy models pull meta-llama/Llama-3.2-1B-Instruct
    """
    from nproxy.cli.models import command

    with _errors_printed(context):
        command.pull(name)


@models.command()
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.pass_context
def remove(context: click.Context, /, *, names: tuple[str, ...], yes: bool) -> None:
    """Remove models from this machine.

    Asks for confirmation. Other programs that use the Hugging Face hub's cache lose what is removed there, too.

    \b
    Examples:
      nproxy models remove Qwen/Qwen3-0.6B
      nproxy models remove --yes smollm2-135m-instruct
    """
    from nproxy.cli.models import command

    with _errors_printed(context):
        command.remove(names, yes=yes)


@contextlib.contextmanager
def _errors_printed(context: click.Context) -> Iterator[None]:
    """Print errors in one line, and exit with the code for them."""
    from nproxy.models import ModelError, NoCache, NoSuchModel

    try:
        yield
    except (WrongUse, ModelError) as error:
        click.echo(f"nproxy: {error}", err=True)
        context.exit(WRONG_USE if isinstance(error, (WrongUse, NoCache, NoSuchModel)) else FAILED)
