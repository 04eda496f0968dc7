"""The commands and their options."""

from __future__ import annotations

import json
from pathlib import Path

import click

from nproxy import __version__
from nproxy.cli.options import ServeOptions
from nproxy.config import Config, ConfigError, load, summarise

FAILED, WRONG_USE = 1, 2


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="nproxy", message="%(prog)s %(version)s")
def main() -> None:
    """OpenAI's n parameter in front of any LLM server."""


@main.command()
@click.option(
    "--model", metavar="ID_OR_PATH", help="Run the built-in engine with this model: a hub id, folder or .gguf."
)
@click.option(
    "--upstream", "upstreams", metavar="URL", multiple=True, help="A server to stand in front of; repeatable."
)
@click.option("--config", "file", metavar="FILE", type=click.Path(path_type=Path), help="Settings as YAML.")
@click.option("--host", metavar="HOST", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", metavar="PORT", help="Port to listen on; 0 takes a free one.  [default: 8000]")
@click.option(
    "--n",
    "n_mode",
    type=click.Choice(["auto", "native", "fanout"]),
    help="Whether upstreams are sent n.  [default: auto]",
)
@click.option("--max-n", metavar="N", help="Widest n that a request may ask for.  [default: 128]")
@click.option("--dtype", type=click.Choice(["auto", "float32", "bfloat16"]), help="What the engine computes in.")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
@click.pass_context
def serve(context: click.Context, /, log_level: str, file: Path | None, **given: str | tuple[str, ...] | None) -> None:
    """Serve the OpenAI API with n on every upstream.

    With no model, no upstream and no file, the built-in engine serves smollm2-135m-instruct.
    Options go over NPROXY_... variables, and these over the file.
    """
    options = ServeOptions.of(given)
    try:
        config = load(file, adjust=options.lay_over)
    except ConfigError as error:
        click.echo(error, err=True)
        context.exit(WRONG_USE)
    from nproxy.cli.serving import ServeFailed, run

    try:
        run(config, log_level)
    except ServeFailed as error:
        click.echo(f"nproxy: {error}", err=True)
        context.exit(error.exit_code)


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.pass_context
def check(context: click.Context, /, file: Path) -> None:
    """Validate a settings file: a summary, or each error with its line.

    NPROXY_... variables are laid over the file, as they are when serving.
    """
    try:
        config = load(file)
    except ConfigError as error:
        click.echo(error, err=True)
        context.exit(WRONG_USE)
    click.echo(summarise(config))


@main.command("config-schema")
def config_schema() -> None:
    """Print the JSON schema of the settings file."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Config.model_json_schema()}
    click.echo(json.dumps(schema, indent=2))
