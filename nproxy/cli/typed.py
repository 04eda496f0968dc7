"""Types of option values, and the options that several commands have."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.types import StringParamType

YEAR = 365 * 24 * 3600


class Finite(click.FloatRange):
    """A finite number in a range. `nan` is neither below nor above a range, and `inf` cannot be computed with."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; fail for infinity and for what is no number."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class Utf8(StringParamType):
    """Text that can be sent as UTF-8: other bytes of the command line arrive as lone surrogates."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the text; fail for bytes that are no UTF-8."""
        text = str(super().convert(value, param, ctx))
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail("it is not valid UTF-8.", param, ctx)
        return text


class FilePath(click.Path):
    """The path of a file; an empty one, as of a variable that is not set, would be the current directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; fail for an empty word."""
        if value == "":
            self.fail("it is empty.", param, ctx)
        return super().convert(value, param, ctx)


SECONDS = Finite(min=0, min_open=True, max=YEAR)
TEMPERATURE = Finite(min=0)
TEXT = Utf8()
FILE = FilePath(path_type=Path)

Command = TypeVar("Command", bound=Callable[..., None])


def model_option() -> Callable[[Command], Command]:
    """Return the option --model."""
    return click.option(
        "--model", metavar="ID", type=TEXT, help="The model to ask.  [default: the first one that the server lists]"
    )


def key_option() -> Callable[[Command], Command]:
    """Return the option --api-key, for `parse_target`."""
    return click.option("--api-key", metavar="KEY", help="The server's key: ${NAME}, file:PATH, or the key itself.")


def timeout_option(name: str, seconds: float, meaning: str) -> Callable[[Command], Command]:
    """Return the option --timeout. name: of the function's argument. meaning: what these seconds are."""
    return click.option(
        "--timeout",
        name,
        metavar="S",
        type=SECONDS,
        default=seconds,
        show_default=True,
        help=f"Seconds that {meaning}.",
    )
