"""The commands and their options."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nproxy import __version__
from nproxy.cli import first_process, standard_streams
from nproxy.cli.bench.options import bench
from nproxy.cli.chat.options import chat
from nproxy.cli.completion import completion
from nproxy.cli.dashboards.options import dashboards
from nproxy.cli.early_signals import outlive_reload_signals
from nproxy.cli.keys.options import keys
from nproxy.cli.models.options import models
from nproxy.cli.typed import FILE, key_option, model_option, timeout_option
from nproxy.cli.wrong_use import FAILED, STOPPED, WRONG_USE, WrongUse

if TYPE_CHECKING:
    from nproxy.cli.probe.command import OutputForm


class _Commands(click.Group):
    """All commands. Handles the exceptions that end each of them in the same way."""

    def make_context(self, *given: Any, **extra: Any) -> click.Context:
        """Read the options, of which --help and --version print at once."""
        with _unwritable_output_told():
            return super().make_context(*given, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the chosen command."""
        standard_streams.make_fit()
        first_process.take_over()
        try:
            with _unwritable_output_told():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("\nnproxy: stopped", err=True)
            ctx.exit(STOPPED)


@contextlib.contextmanager
def _unwritable_output_told() -> Iterator[None]:
    """Exit with one line if the disk to which standard output goes is full, for example."""
    try:
        yield
    except OSError as error:
        if not standard_streams.unwritable(error):
            raise
        click.echo(f"nproxy: the output cannot be written: {(error.strerror or '').lower()}", err=True)
        sys.exit(FAILED)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="nproxy", message="%(prog)s %(version)s")
def main() -> None:
    """OpenAI's n parameter in front of any LLM server.

    \b
    Examples:
      nproxy serve                   # the built-in engine, on 127.0.0.1:8000
      nproxy chat -n 4               # in a second terminal: four answers side by side
      nproxy probe http://127.0.0.1:11434/v1
      nproxy serve --upstream http://127.0.0.1:11434/v1
    """


for _command in (bench, chat, completion, dashboards, keys, models):
    main.add_command(_command)


@main.command()
@click.option(
    "--model",
    metavar="ID_OR_PATH",
    help="Run the built-in engine with this model: a Hugging Face id, a file there (org/name/x.gguf), or a local path.",
)
@click.option(
    "--upstream",
    "upstreams",
    metavar="URL",
    multiple=True,
    help="Base URL of a server to use as an upstream; repeatable, each is an upstream of its own.",
)
@click.option(
    "--upstream-key",
    metavar="KEY",
    help="Key that the servers of --upstream get: ${NAME}, file:PATH, or the key itself.  [default: the client's]",
)
@click.option("--config", "file", metavar="FILE", type=FILE, help="Settings file (YAML).")
@click.option("--host", metavar="HOST", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", metavar="PORT", help="Port to listen on; 0 picks a free port.  [default: 8000]")
@click.option("--workers", metavar="N", help="Gateway processes that share the port.  [default: 1]")
@click.option(
    "--n",
    "n_mode",
    type=click.Choice(["auto", "native", "fanout"]),
    help="Send n to upstreams (native), or a call for each choice (fanout).  [default: auto]",
)
@click.option("--max-n", metavar="N", help="Largest n that a request may ask for.  [default: 128]")
@click.option("--api-key", metavar="KEY", help="Key that clients must send: ${NAME}, file:PATH, or the key itself.")
@click.option(
    "--dtype",
    type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
    help="Data type in which the engine computes.",
)
@click.option(
    "--quantization",
    type=click.Choice(["int8"]),
    help="Store the engine's weights as int8 and multiply in int8, on a CPU.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Lowest level that is logged.",
)
@click.pass_context
def serve(context: click.Context, /, log_level: str, file: Path | None, **given: str | tuple[str, ...] | None) -> None:
    """Serve the OpenAI API with n on every upstream.

    With no model, no upstream and no file, the built-in engine serves smollm2-135m-instruct. Options override
    NPROXY_... variables, and variables override the file. Two underscores separate the levels of a variable's key:
    NPROXY_LISTEN__PORT=9000 sets listen.port.

    \b
    Examples:
      nproxy serve
      nproxy serve --model HuggingFaceTB/SmolLM2-360M-Instruct --port 9000
      nproxy serve --model ./weights/model.gguf --dtype float32
      nproxy serve --upstream http://127.0.0.1:11434/v1 --n fanout
      nproxy serve --upstream http://10.0.0.1:8000/v1 --api-key '${KEY}' --host 0.0.0.0
      nproxy serve --upstream https://api.example.com/v1 --upstream-key '${THEIR_KEY}'
      nproxy serve --config nproxy.yaml --workers 4
      NPROXY_N_POLICY__MAX_N=16 nproxy serve --config nproxy.yaml
    """
    outlive_reload_signals()  # before the imports, which take a second
    from nproxy.cli.options import ServeOptions
    from nproxy.config import ConfigError, Source

    try:
        reading = Source(file, adjust=ServeOptions.of(given).lay_over).read()
        reading.checked()
        from nproxy.cli.serving import ServeFailed, run  # takes a second

        try:
            run(reading, log_level)
        except ServeFailed as error:
            click.echo(f"nproxy: {error}", err=True)
            context.exit(error.code)
    except ConfigError as error:
        click.echo(error, err=True)
        context.exit(WRONG_USE)


@main.command()
@click.argument("file", type=FILE)
@click.pass_context
def check(context: click.Context, /, file: Path) -> None:
    """Validate a settings file.

    Prints a summary, or each error with its line. NPROXY_... variables override the file, as they do when serving. If
    nothing else is wrong, the engine must be installed, its adapters must be on this machine, and its model must be,
    too, or be a possible hub id; the hub is not asked. The command cannot know what servers answer, nor which changes a
    running gateway can apply only after a restart.

    \b
    Examples:
      nproxy check nproxy.yaml
      nproxy check nproxy.yaml && systemctl reload nproxy
    """
    from nproxy.cli import engine_needs
    from nproxy.config import ConfigError, Source, summarise

    reading = Source(file).read()
    try:
        config = reading.checked()
        summary = summarise(config, reading.keys, reading.pair)
        if config.engine is not None:
            engine_needs.demand_usable(config.engine, reading)
            engine_needs.demand_installed()
    except (ConfigError, engine_needs.NotInstalled) as error:
        click.echo(error, err=True)
        context.exit(WRONG_USE)
    click.echo(summary)


@main.command("config-schema")
def config_schema() -> None:
    """Print the JSON schema of the settings file.

    Editors with YAML support use it to complete and check a file that begins with the comment "# yaml-language-server:
    $schema=nproxy.schema.json".

    \b
    Examples:
      nproxy config-schema > nproxy.schema.json
    """
    from nproxy.config.schema import schema

    click.echo(json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema()}, indent=2))


@main.command()
@click.argument("url")
@model_option()
@key_option()
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@click.option("--yaml", "as_yaml", is_flag=True, help="Print an upstream entry for the settings file.")
@timeout_option("seconds", 60.0, "one answer may take")
@click.pass_context
def probe(
    context: click.Context,
    /,
    *,
    url: str,
    model: str | None,
    api_key: str | None,
    as_json: bool,
    as_yaml: bool,
    seconds: float,
) -> None:
    """Find out what a server can do.

    Sends about 65 small requests to an OpenAI-compatible server, 32 of them at once and one for up to 128 choices, and
    reports what the answers showed. URL is its base URL, such as http://127.0.0.1:8000/v1, or unix:/path of a socket.

    \b
    Examples:
      nproxy probe http://127.0.0.1:11434/v1 --model llama3.2
      nproxy probe http://127.0.0.1:8080/v1 --yaml > upstream.yaml
      nproxy probe https://api.example.com/v1 --api-key '${EXAMPLE_KEY}' --json
    """
    if as_json and as_yaml:
        raise click.UsageError("--json and --yaml cannot be used together")
    from nproxy.cli.probe import command
    from nproxy.cli.probe.interview import ProbeFailed

    form: OutputForm = "json" if as_json else "yaml" if as_yaml else "table"
    try:
        command.run(url, model=model, api_key=api_key, seconds=seconds, form=form)
    except (WrongUse, ProbeFailed) as error:
        click.echo(f"nproxy: {error}", err=True)
        context.exit(WRONG_USE if isinstance(error, WrongUse) else FAILED)
