"""Tokens of several choices become pieces of text; the whole answer is their fold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.messages import TokenDrawn
from engine.server.output import Output, Piece
from engine.text.detokenizer import TokenBytes

WORDS = [b"a", b" b", b".", b"\n", b"\xf0\x9f", b"\x98\x80", b"", b"END", b"EN", b"D"]
A, B, DOT, NEWLINE, HALF, OTHER_HALF, EOS, END, EN, D = range(10)
TABLE = TokenBytes(WORDS)


def output(n: int = 1, groups: tuple[int, ...] = (7,), stops: tuple[str, ...] = (), echo: str = "") -> Output:
    return Output(groups, TABLE, [stops] * n, [echo] * len(groups))


def drawn(choice: int, token: int, finish: str | None = None, group: int = 7) -> TokenDrawn:
    return TokenDrawn(group, choice, token, finish)


def test_one_step_of_several_choices() -> None:
    out = output(n=3)
    taken = out.take([drawn(0, A), drawn(2, B), drawn(1, DOT)])
    assert taken.pieces == (Piece(0, "a", None), Piece(1, ".", None), Piece(2, " b", None))
    assert (taken.cut, out.completion_tokens, out.finished) == ((), 3, False)


def test_several_steps_of_one_choice_are_one_piece() -> None:
    assert output().take([drawn(0, A), drawn(0, B), drawn(0, DOT)]).pieces == (Piece(0, "a b.", None),)


def test_prompts_take_their_n_indices_each() -> None:
    out = output(n=2, groups=(7, 9))
    taken = out.take([drawn(1, A, group=9), drawn(0, B, group=7)])
    assert taken.pieces == (Piece(0, " b", None), Piece(3, "a", None))


def test_a_stop_token_counts_and_is_not_shown() -> None:
    out = output()
    assert out.take([drawn(0, A), drawn(0, EN, "stop")]).pieces == (Piece(0, "a", "stop"),)
    assert (out.completion_tokens, out.finished) == (2, True)


def test_the_last_token_at_the_limit_is_shown() -> None:
    assert output().take([drawn(0, A, "length")]).pieces == (Piece(0, "a", "length"),)


def test_a_character_over_two_tokens_comes_once_and_whole() -> None:
    out = output()
    assert out.take([drawn(0, HALF)]).pieces == ()
    assert out.take([drawn(0, OTHER_HALF)]).pieces == (Piece(0, "😀", None),)


def test_an_end_in_mid_character_shows_the_replacement() -> None:
    assert output().take([drawn(0, HALF, "length")]).pieces == (Piece(0, "\ufffd", "length"),)


def test_I1_a_stop_string_cuts_the_choice_in_the_core() -> None:
    out = output(n=2, stops=("END",))
    assert out.take([drawn(0, EN), drawn(1, A)]).pieces == (Piece(1, "a", None),)
    taken = out.take([drawn(0, D), drawn(1, A)])
    assert taken.pieces == (Piece(0, "", "stop"), Piece(1, "a", None))
    assert taken.cut == ((7, 0),)
    assert out.completion_tokens == 4


def test_tokens_under_way_when_a_choice_was_cut_are_not_the_clients() -> None:
    out = output(n=2, stops=(".",))
    out.take([drawn(0, DOT)])
    taken = out.take([drawn(0, A), drawn(0, B, "length"), drawn(1, A)])
    assert taken.pieces == (Piece(1, "a", None),)
    assert out.completion_tokens == 2


def test_a_stop_string_in_the_last_token_needs_no_cut() -> None:
    taken = output(stops=(".",)).take([drawn(0, DOT, "length")])
    assert (taken.pieces, taken.cut) == ((Piece(0, "", "stop"),), ())


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_what_a_stop_string_held_back_comes_with_the_finish(finish: str) -> None:
    out = output(stops=("END",))
    assert out.take([drawn(0, A), drawn(0, EN)]).pieces == (Piece(0, "a", None),)
    last = "." if finish == "length" else ""
    assert out.take([drawn(0, DOT, finish)]).pieces == (Piece(0, "EN" + last, finish),)


def test_J6_echo_comes_once_per_choice_even_without_text_of_its_own() -> None:
    out = output(n=2, echo="Say: ")
    assert out.take([drawn(0, HALF), drawn(1, A)]).pieces == (Piece(0, "Say: ", None), Piece(1, "Say: a", None))
    assert out.take([drawn(0, OTHER_HALF, "length")]).pieces == (Piece(0, "😀", "length"),)


def test_echo_is_not_searched_for_stops() -> None:
    assert output(stops=(".",), echo="No. ").take([drawn(0, A)]).pieces == (Piece(0, "No. a", None),)


tokens_of_three = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=40)


@given(tokens=tokens_of_three, stops=st.sampled_from([(), (".",), ("END", "a b")]), data=st.data())
def test_any_batching_gives_the_same_answer(
    tokens: list[tuple[int, int]], stops: tuple[str, ...], data: st.DataObject
) -> None:
    steps = [drawn(choice, token) for choice, token in tokens]
    steps += [drawn(choice, EOS, "stop") for choice in range(3)]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(steps)), max_size=6)))

    def folded(batches: list[list[TokenDrawn]]) -> tuple[dict[int, tuple[str, list[str]]], int]:
        out = output(n=3, stops=stops)
        pieces = [piece for batch in batches for piece in out.take(batch).pieces]
        assert out.finished
        answer = {
            index: (
                "".join(p.text for p in pieces if p.index == index),
                [p.finish for p in pieces if p.index == index and p.finish is not None],
            )
            for index in range(3)
        }
        assert all(finish == ["stop"] for _, finish in answer.values())
        return answer, out.completion_tokens

    batches = [steps[a:b] for a, b in zip([0, *cuts], [*cuts, len(steps)], strict=True)]
    assert folded(batches) == folded([[step] for step in steps])
