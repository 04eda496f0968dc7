"""Answers side by side on a terminal: as many columns as fit, and several rows if there are more answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from nproxy.cli.chat.answers import Answers, Choice, Tokens
from nproxy.cli.printable import printable

NARROWEST = 36
"""Minimum width of one answer in terminal columns, including its border."""
_BORDER = 4
_FRAME = 2
_FEWEST_LINES = 3
"""Minimum lines of text that a row shows of each answer while they grow; if not all rows fit so, they are shown in
turn."""

_CONTROLS = (*range(32), *range(127, 160))
_DIRECTIONS = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Characters that change the direction of all text after them, even in the frame and the neighbour's answer."""
_LINES = dict.fromkeys((10, 0x2028, 0x2029), "\n")
_SHOWN: dict[int, str | None] = dict.fromkeys((*_CONTROLS, *_DIRECTIONS)) | _LINES | {9: "    "}


def shown(text: str) -> str:
    """Make a server's text safe for a terminal: removes what moves the cursor, colours or reverses text."""
    return text.translate(_SHOWN)


@dataclass(frozen=True, slots=True)
class Columns:
    """Draws answers. growing: only the end of each, no more than fits the terminal's height; otherwise all of them."""

    answers: Answers
    growing: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        choices, tokens = self.answers.choices, self.answers.tokens()
        across = columns(len(choices), options.max_width)
        width = options.max_width // across - _BORDER
        rows = [choices[start : start + across] for start in range(0, len(choices), across)]
        most = None
        if self.growing:
            high = console.height - 2  # one line for `_where`, and one for the cursor
            fitting = max(1, min(len(rows), high // (_FEWEST_LINES + _FRAME)))
            most = max(1, high // fitting - _FRAME)
            rows = _turn(rows, fitting)
        for row in rows:
            grid = Table.grid(expand=True)
            for _ in range(across):
                grid.add_column(ratio=1)
            bodies = [_lines(choice, width, most, console) for choice in row]
            high = _FRAME + max(1, *map(len, bodies))
            ends = [footer(choice, tokens[choice.index], stopped=self.answers.stopped) for choice in row]
            grid.add_row(*map(partial(_panel, high), row, bodies, ends))
            yield grid
        if self.growing:
            yield Text(_where(choices, rows), "dim", no_wrap=True, overflow="ellipsis")


def _panel(high: int, choice: Choice, lines: Sequence[Text], end: str) -> Panel:
    title, subtitle = Text(str(choice.index)), Text(end)
    body = Group(*lines)
    return Panel(
        body, title=title, title_align="left", subtitle=subtitle, subtitle_align="left", border_style="dim", height=high
    )


def columns(choices: int, width: int) -> int:
    """Return how many answers are put side by side: as many as fit, with the rows about equally full."""
    most = min(choices, max(1, width // NARROWEST))
    return ceil(choices / ceil(choices / most))


def footer(choice: Choice, tokens: Tokens, *, stopped: bool) -> str:
    """Return how a choice ended, its tokens and its speed."""
    end = choice.finish or ("stopped" if stopped else "")
    speed = choice.speed(tokens.number)
    parts = [
        f"error: {printable(choice.error, 60)}" if choice.error else printable(end, 20),
        f"{'' if tokens.exact else '~'}{tokens.number} token{'' if tokens.number == 1 else 's'}"
        if choice.pieces
        else "",
        f"{speed:.1f} tokens/s" if speed is not None else "",
    ]
    return ", ".join(part for part in parts if part) or "waits"


def _turn(rows: Sequence[list[Choice]], fitting: int) -> list[list[Choice]]:
    """Return the rows to show: from the first one on in which a choice still grows."""
    growing = next((at for at, row in enumerate(rows) if any(choice.finish is None for choice in row)), 0)
    first = min(growing, len(rows) - fitting)
    return list(rows[first : first + fitting])


def _where(choices: Sequence[Choice], rows: Sequence[list[Choice]]) -> str:
    ended = sum(choice.finish is not None for choice in choices)
    parts = [f"{ended} of {len(choices)} ended", "Ctrl-C to stop"]
    if sum(map(len, rows)) < len(choices):
        parts.insert(0, f"choices {rows[0][0].index} to {rows[-1][-1].index} of {len(choices)}")
    return "; ".join(parts)


def _body(choice: Choice) -> Text:
    """Return the reasoning, dimmed, then the answer."""
    reasoning, text = shown(choice.reasoning).strip(), shown(choice.text).strip()
    return Text("\n\n" if reasoning and text else "").join([Text(reasoning, "dim italic"), Text(text)])


def _lines(choice: Choice, width: int, most: int | None, console: Console) -> list[Text]:
    """Return the lines of an answer, or the last `most` of them.

    Text long before the end is not even wrapped; it is cut at the beginning of a line, so that the display does not
    jump.
    """
    body = _body(choice)
    if most is None:
        return [*body.wrap(console, width)]
    begins = body.plain.rfind("\n", 0, max(0, len(body) - width * most)) + 1
    return [*body[begins:].wrap(console, width)][-most:]
