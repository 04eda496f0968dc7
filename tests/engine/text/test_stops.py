"""Stop strings: where the text ends does not depend on how it is cut into tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.text.stops import StopScanner


def scan(pieces: list[str], stops: tuple[str, ...]) -> tuple[list[str], str | None]:
    scanner = StopScanner(stops)
    shown = [scanner.feed(piece) for piece in pieces]
    return [*shown, scanner.flush()], scanner.matched


@pytest.mark.parametrize(
    ("pieces", "stops", "shown", "matched"),
    [
        (["Hello. World"], (".",), ["Hello", ""], "."),
        (["a", "b", "c"], (), ["a", "b", "c", ""], None),
        (["one\n", "\nHu", "man: two"], ("\n\nHuman:",), ["one", "", "", ""], "\n\nHuman:"),  # over three tokens
        (["one\n", "\nHu", "ge"], ("\n\nHuman:",), ["one", "", "\n\nHuge", ""], None),  # it only looked like it
        (["aab"], ("ab",), ["a", ""], "ab"),
        (["aa", "ab"], ("aab",), ["", "a", ""], "aab"),  # a match may begin inside what was held back
        (["x", "EN"], ("END",), ["x", "", "EN"], None),  # held back to the end, then shown
        (["abc"], ("bc", "abc"), ["", ""], "abc"),  # complete together: the longest
        (["abc"], ("abc", "b"), ["a", ""], "b"),  # complete first
    ],
)
def test_scan(pieces: list[str], stops: tuple[str, ...], shown: list[str], matched: str | None) -> None:
    assert scan(pieces, stops) == (shown, matched)


def test_nothing_after_a_match() -> None:
    scanner = StopScanner(("!",))
    assert scanner.feed("a!b") == "a"
    assert scanner.feed("c!") == ""
    assert scanner.flush() == ""


def test_a_stop_string_that_is_kept_ends_the_text_behind_it() -> None:
    scanner = StopScanner(("END", "\n\n"), keep=True)
    assert [scanner.feed("aE"), scanner.feed("NDb"), scanner.flush()] == ["a", "END", ""]
    assert scanner.matched == "END"


def by_the_letter(text: str, stops: tuple[str, ...], early: int = 0) -> tuple[str, str | None]:
    """The rule itself, one character at a time over the whole text; no stop string is complete in the first `early`."""
    for end in range(early + 1, len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            longest = max(ended, key=len)
            return text[: end - len(longest)], longest
    return text, None


few_letters = st.text(alphabet="ab\n", max_size=24)
some_stops = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=5), max_size=4).map(tuple)


@given(text=few_letters, stops=some_stops, data=st.data())
def test_any_cut_gives_the_same(text: str, stops: tuple[str, ...], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    shown, matched = scan(pieces, stops)
    assert ("".join(shown), matched) == by_the_letter(text, stops)


@given(text=few_letters, stops=some_stops, early=st.integers(0, 12))
def test_a_stop_string_that_is_complete_too_early_does_not_count(text: str, stops: tuple[str, ...], early: int) -> None:
    early = min(early, len(text))
    scanner = StopScanner(stops)
    shown = [scanner.feed(letter, ends=at >= early) for at, letter in enumerate(text)]
    assert ("".join(shown) + scanner.flush(), scanner.matched) == by_the_letter(text, stops, early)


@given(text=few_letters, stops=some_stops)
def test_no_more_is_held_back_than_could_matter(text: str, stops: tuple[str, ...]) -> None:
    scanner = StopScanner(stops)
    shown = "".join(scanner.feed(letter) for letter in text)
    if scanner.matched is None:
        held = text[len(shown) :]
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)
