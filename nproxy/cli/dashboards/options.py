"""The options of `nproxy dashboards export`; the implementation is imported when it runs."""

from __future__ import annotations

import re
from pathlib import Path

import click

from nproxy.cli.wrong_use import FAILED

_URL = re.compile(r"https?://[!$-;=?-~]+")  # no blank, quote, mark of a fragment or bracket


@click.group()
def dashboards() -> None:
    """Grafana's dashboards and Prometheus' rules for nproxy.

    \b
    Examples:
      nproxy dashboards export monitoring
    """


def _parse_url(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    if value is not None and not _URL.fullmatch(value):
        raise click.BadParameter("must be a URL such as https://wiki.example.com/nproxy/guides")
    return value


@dashboards.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--datasource", metavar="NAME", help="Name of Grafana's data source.  [default: chosen in each dashboard]"
)
@click.option(
    "--guides",
    metavar="URL",
    callback=_parse_url,
    help="URL of a copy of docs/guides, for the runbook links of alerts.",
)
@click.pass_context
def export(context: click.Context, /, *, folder: Path, datasource: str | None, guides: str | None) -> None:
    """Write the dashboards and rules into DIR.

    DIR/dashboards/*.json are for Grafana 10 and newer: import them, or provision a folder of them. DIR/rules/*.yml go
    under rule_files of Prometheus. Existing files of these names are overwritten.

    \b
    Examples:
      nproxy dashboards export monitoring
      nproxy dashboards export monitoring --datasource Mimir
      nproxy dashboards export monitoring --guides https://wiki.example.com/nproxy/guides
    """
    from nproxy.cli.dashboards.export import NotWritten, write

    try:
        for file in write(folder, datasource=datasource, guides=guides):
            click.echo(file)
    except NotWritten as error:
        click.echo(f"nproxy: {error}", err=True)
        context.exit(FAILED)
