"""docs/reference/engine.md: the options of `python -m engine`, from argparse's objects."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from docs.generate.markdown import code, table
from engine.options import argument_parser

_INTRODUCTION = """\
# Engine

Generated from the options (`make docs`); `python -m engine --help` shows the same.

`python -m engine MODEL [options]` serves one model over the OpenAI API, without a gateway
([guide](../guides/engine.md)). `nproxy serve` starts it with the settings of [`engine`](config.md#engine). MODEL is a
Hugging Face folder or a .gguf file.

Exit codes: 0 after SIGTERM, SIGINT or (`--exit-with-stdin`) the end of standard input; 1 if the engine failed; 2 for
wrong options, a model that cannot be served, settings that do not fit the model or the machine, or an address that
cannot be listened on.
"""


def page() -> str:
    """Return the text of docs/reference/engine.md."""
    return "\n".join([_INTRODUCTION, *_groups(argument_parser())])


def _groups(words: argparse.ArgumentParser) -> Iterator[str]:
    for group in words._action_groups:
        options = [
            _option(action) for action in group._group_actions if action.option_strings and action.dest != "help"
        ]
        if options:
            yield f"## {str(group.title).capitalize()}\n"
            yield table(["option", "what it does (default)"], options)


def _option(action: argparse.Action) -> tuple[str, str]:
    names = ", ".join(code(name) for name in action.option_strings)
    if action.nargs == 0:
        value = ""
    elif action.choices is not None:
        value = " " + " or ".join(code(str(choice)) for choice in action.choices)
    else:
        value = f" {code(str(action.metavar))}"
    return names + value, (action.help or "") % vars(action)
