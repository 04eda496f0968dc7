"""What columns of answers look like: all of the text, as wide as the terminal, thoughts above what they led to."""

from __future__ import annotations

import io

from rich.console import Console

from nproxy.cli.chat.answers import Answers
from nproxy.cli.chat.columns import Columns

WORDS = [f"word{number}" for number in range(100)]


def answered(*texts: str, reasoning: str = "") -> Answers:
    """Choices that have ended."""
    found = Answers.of(len(texts), 0.0)
    for choice, text in zip(found.choices, texts, strict=True):
        choice.text, choice.reasoning, choice.finish, choice.pieces = text, reasoning, "stop", 1
    return found


def drawn(found: Answers, width: int, height: int = 24, *, growing: bool = False) -> list[str]:
    """The lines on a terminal of this size."""
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    with console.capture() as screen:
        console.print(Columns(found, growing=growing))
    return screen.get().splitlines()


def written(lines: list[str]) -> list[str]:
    """What stands in the first column, line by line, without its border."""
    return [line.split("│")[1].strip() for line in lines if line.startswith("│")]


def test_of_answers_that_have_ended_no_word_is_missing() -> None:
    for n, width in ((1, 80), (2, 80), (4, 160)):
        lines = drawn(answered(*[" ".join(WORDS)] * n), width, height=10)
        assert " ".join(written(lines)).split() == WORDS
        assert not any("Ctrl-C" in line for line in lines)


def test_columns_share_the_whole_width_however_short_their_answers_are() -> None:
    top, middle, bottom = drawn(answered("a", "a longer one"), 80)
    assert [len(line) for line in (top, middle, bottom)] == [80, 80, 80]
    assert [at for at, sign in enumerate(top) if sign == "╭"] == [0, 40]


def test_an_answer_without_thoughts_begins_at_the_top() -> None:
    assert written(drawn(answered("x"), 40)) == ["x"]
    assert written(drawn(answered("", reasoning="why"), 40)) == ["why"]


def test_thoughts_stand_above_the_answer() -> None:
    assert written(drawn(answered("x", reasoning="why"), 40)) == ["why", "", "x"]


def test_where_all_are_seen_nobody_is_told_which() -> None:
    assert drawn(answered("x", "y"), 80, growing=True)[-1] == "2 of 2 ended; Ctrl-C to stop"


def test_where_all_have_ended_the_first_are_seen() -> None:
    last = drawn(answered(*"abcdefgh"), 40, 14, growing=True)[-1]
    assert last.startswith("choices 0 to 1 of 8")
