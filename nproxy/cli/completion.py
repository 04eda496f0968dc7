"""`nproxy completion`: a shell script that completes commands and options at the tab key."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_VARIABLE = "_NPROXY_COMPLETE"
"""The variable by which the script asks `nproxy` to print completions instead of running, by click's conventions."""


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, /, *, shell: str) -> None:
    """Print a script that completes commands at the tab key.

    \b
    Examples:
      nproxy completion bash > ~/.local/share/bash-completion/completions/nproxy
      nproxy completion zsh > ~/.zfunc/_nproxy
      nproxy completion fish > ~/.config/fish/completions/nproxy.fish
    """
    script = get_completion_class(shell)
    if script is None:  # click supports all three since 8.0
        raise click.UsageError(f"no completion for {shell}")
    click.echo(script(context.find_root().command, {}, "nproxy", _VARIABLE).source())
