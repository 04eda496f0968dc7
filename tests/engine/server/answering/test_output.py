"""Tokens of several choices become pieces of text; the whole answer is their fold."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.messages import Logprobs, Started, TokenDrawn
from engine.server.answering.choice_text import text_of
from engine.server.answering.output import Manner, Output, ReportedToken, Taken
from engine.text.detokenizer import TokenBytes
from engine.text.parsers.families import Families, parser_for
from engine.text.parsers.parts import Content, Parser, Part, Reasoning, ToolArguments, ToolStart

WORDS = [b"a", b" b", b".", b"\n", b"\xf0\x9f", b"\x98\x80", b"", b"END", b"EN", b"D"]
A, B, DOT, NEWLINE, HALF, OTHER_HALF, EOS, END, EN, D = range(10)
MARK, BARE = 10, 11
TABLE = TokenBytes(WORDS)


def output(n: int = 1, groups: tuple[int, ...] = (7,), **manner: Any) -> Output:
    return Output(groups, TABLE, [[Manner(**manner)] * n] * len(groups))


def shown(taken: Taken) -> list[tuple[int, str, str | None]]:
    """Index, text and finish of each piece."""
    return [(piece.index, text_of(piece.parts), piece.finish) for piece in taken.pieces]


def drawn(choice: int, token: int, finish: str | None = None, group: int = 7) -> TokenDrawn:
    return TokenDrawn(group, choice, token, finish)


def test_one_step_of_several_choices() -> None:
    out = output(n=3)
    taken = out.take([drawn(0, A), drawn(2, B), drawn(1, DOT)])
    assert shown(taken) == [(0, "a", None), (1, ".", None), (2, " b", None)]
    assert (taken.cut, out.completion_tokens, out.finished) == ((), 3, False)


def test_several_steps_of_one_choice_are_one_piece() -> None:
    assert shown(output().take([drawn(0, A), drawn(0, B), drawn(0, DOT)])) == [(0, "a b.", None)]


def test_prompts_take_their_n_indices_each() -> None:
    out = output(n=2, groups=(7, 9))
    taken = out.take([drawn(1, A, group=9), drawn(0, B, group=7)])
    assert shown(taken) == [(0, " b", None), (3, "a", None)]


def test_a_stop_token_counts_and_is_not_shown() -> None:
    out = output()
    assert shown(out.take([drawn(0, A), drawn(0, EN, "stop")])) == [(0, "a", "stop")]
    assert (out.completion_tokens, out.finished) == (2, True)


def test_the_last_token_at_the_limit_is_shown() -> None:
    assert shown(output().take([drawn(0, A, "length")])) == [(0, "a", "length")]


def test_a_character_over_two_tokens_comes_once_and_whole() -> None:
    out = output()
    assert shown(out.take([drawn(0, HALF)])) == []
    assert shown(out.take([drawn(0, OTHER_HALF)])) == [(0, "😀", None)]


def test_an_end_in_mid_character_shows_the_replacement() -> None:
    assert shown(output().take([drawn(0, HALF, "length")])) == [(0, "\ufffd", "length")]


def test_I1_a_stop_string_cuts_the_choice_in_the_core() -> None:
    out = output(n=2, stops=("END",))
    assert shown(out.take([drawn(0, EN), drawn(1, A)])) == [(1, "a", None)]
    taken = out.take([drawn(0, D), drawn(1, A)])
    assert shown(taken) == [(0, "", "stop"), (1, "a", None)]
    assert taken.cut == ((7, 0),)
    assert out.completion_tokens == 4


@pytest.mark.parametrize(
    ("manner", "token", "finish", "reason"),
    [
        ({"stops": ("x", ".")}, DOT, None, "."),
        ({"stops": (".",), "stop_tokens": {DOT}, "keep_stop": True}, DOT, "stop", "."),
        ({"stop_tokens": {DOT}}, DOT, "stop", DOT),
        ({"stop_tokens": {DOT}}, EOS, "stop", None),
        ({"stop_tokens": {DOT}}, DOT, "length", None),
        ({}, EOS, "stop", None),
    ],
)
def test_I4_what_the_client_named_and_the_choice_ended_with(
    manner: dict[str, Any], token: int, finish: str | None, reason: str | int | None
) -> None:
    out = output(**manner)
    pieces = [*out.take([drawn(0, A)]).pieces, *out.take([drawn(0, token, finish)]).pieces]
    assert [piece.stop_reason for piece in pieces] == [None, reason]


def test_tokens_under_way_when_a_choice_was_cut_are_not_the_clients() -> None:
    out = output(n=2, stops=(".",))
    out.take([drawn(0, DOT)])
    taken = out.take([drawn(0, A), drawn(0, B, "length"), drawn(1, A)])
    assert shown(taken) == [(1, "a", None)]
    assert out.completion_tokens == 2


def test_a_stop_string_in_the_last_token_needs_no_cut() -> None:
    taken = output(stops=(".",)).take([drawn(0, DOT, "length")])
    assert (shown(taken), taken.cut) == ([(0, "", "stop")], ())


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_what_a_stop_string_held_back_comes_with_the_finish(finish: str) -> None:
    out = output(stops=("END",))
    assert shown(out.take([drawn(0, A), drawn(0, EN)])) == [(0, "a", None)]
    last = "." if finish == "length" else ""
    assert shown(out.take([drawn(0, DOT, finish)])) == [(0, "EN" + last, finish)]


def test_J6_echo_comes_once_per_choice_even_without_text_of_its_own() -> None:
    out = output(n=2, echo="Say: ")
    assert shown(out.take([drawn(0, HALF), drawn(1, A)])) == [(0, "Say: ", None), (1, "Say: a", None)]
    assert shown(out.take([drawn(0, OTHER_HALF, "length")])) == [(0, "😀", "length")]


def test_echo_is_not_searched_for_stops() -> None:
    assert shown(output(stops=(".",), echo="No. ").take([drawn(0, A)])) == [(0, "No. a", None)]


SCORE = Logprobs(-0.5, 1)


def scored(token: int, finish: str | None = None, choice: int = 0) -> TokenDrawn:
    return TokenDrawn(7, choice, token, finish, SCORE)


def reported(out: Output, *tokens: TokenDrawn) -> list[tuple[str, list[tuple[int, int]]]]:
    """One step for each token: of each piece its text, and its tokens with their offsets."""
    pieces = [piece for token in tokens for piece in out.take([token]).pieces]
    return [(text_of(piece.parts), [(one.token, one.offset) for one in piece.reported]) for piece in pieces]


def test_F1_a_token_is_reported_with_its_text() -> None:
    out = output(reports=True)
    assert reported(out, scored(A), scored(B), scored(EOS, "stop")) == [
        ("a", [(A, 0)]),
        (" b", [(B, 1)]),
        ("", [(EOS, 3)]),
    ]
    assert out.completion_tokens == 3


def test_tokens_are_reported_only_where_that_is_asked_for() -> None:
    assert reported(output(), scored(A), scored(B, "length")) == [("a", []), (" b", [])]


def test_F5_the_parts_of_a_character_are_reported_with_it() -> None:
    expected = [("a", [(A, 0)]), ("😀", [(HALF, 1), (OTHER_HALF, 1)]), (".", [(DOT, 2)])]
    assert (
        reported(output(reports=True), scored(A), scored(HALF), scored(OTHER_HALF), scored(DOT, "length")) == expected
    )


def test_tokens_held_back_by_a_stop_string_are_reported_when_it_is_certain() -> None:
    manner: dict[str, Any] = {"reports": True, "stops": ("END",)}
    released = reported(output(**manner), scored(A), scored(EN), scored(DOT, "length"))
    assert released == [("a", [(A, 0)]), ("EN.", [(EN, 1), (DOT, 3)])]
    assert reported(output(**manner), scored(A), scored(EN), scored(D)) == [("a", [(A, 0)]), ("", [(EN, 1), (D, 3)])]


def test_F7_the_prompts_tokens_are_reported_with_the_echo() -> None:
    out = output(n=2, reports=True, echo="a b", prompt=(A, B))
    first = Started(7, 1, (None, Logprobs(-2.0, 5)))
    pieces = out.take([first, scored(DOT), scored(A, choice=1)]).pieces
    for piece, token in zip(pieces, (DOT, A), strict=True):
        assert piece.reported == (
            ReportedToken(A, None, 0, echoed=True),
            ReportedToken(B, Logprobs(-2.0, 5), 1, echoed=True),
            ReportedToken(token, SCORE, 3),
        )
    assert out.cached_tokens == 1


def test_offsets_of_an_echo_whose_tokens_begin_with_a_space_of_their_own() -> None:
    out = output(reports=True, echo="b.", prompt=(B, DOT))
    (piece,) = out.take([Started(7, 0, (None, SCORE)), scored(A)]).pieces
    assert [one.offset for one in piece.reported] == [0, 1, 2]


@pytest.mark.parametrize(
    ("echo", "prompt", "places"),
    [
        ("END b", (EOS, B), [0, 3]),
        ("ENDa<s>b", (END, A, MARK, BARE), [0, 3, 4, 7]),
        ("ENDab", (END, A, MARK, BARE), [0, 3, 4, 4]),
        ("a", (A, B, DOT), [0, 1, 1]),
        ("a\U0001fad0 b.", (A, HALF, B, DOT), [0, 1, 2, 4]),
        ("a\U0001f600.", (A, HALF, OTHER_HALF, DOT), [0, 1, 1, 2]),
    ],
)
def test_offsets_are_where_the_clients_words_stand(echo: str, prompt: tuple[int, ...], places: list[int]) -> None:
    """Of special tokens, too, where the client wrote them; and behind characters that the vocabulary lacks."""
    table = TokenBytes([*WORDS, b"", b"b"], {EOS: b"END", MARK: b"<s>"})
    manner = Manner(reports=True, echo=echo, prompt=prompt)
    [piece] = Output((7,), table, [[manner]]).take([Started(7, 0, (None,) * len(prompt)), drawn(0, A)]).pieces
    assert [reported.offset for reported in piece.reported if reported.echoed] == places


def test_a_silent_choice_ends_with_its_echo() -> None:
    out = output(reports=True, echo="a", prompt=(A,), silent=True)
    taken = out.take([Started(7, 0, (None,)), scored(B, "length")])
    assert (shown(taken), taken.cut, out.finished, out.completion_tokens) == ([(0, "a", "length")], (), True, 0)
    assert [one.token for one in taken.pieces[0].reported] == [A]


def test_a_stop_that_is_kept() -> None:
    out = output(stops=("END",), keep_stop=True)
    assert shown(out.take([drawn(0, EN), drawn(0, D)])) == [(0, "END", "stop")]
    assert shown(output(keep_stop=True).take([drawn(0, A), drawn(0, B, "stop")])) == [(0, "a b", "stop")]


def test_no_stop_string_counts_before_the_least_number_of_tokens() -> None:
    out = output(stops=(".",), min_tokens=2)
    assert shown(out.take([drawn(0, DOT), drawn(0, DOT)])) == [(0, "..", None)]
    assert shown(out.take([drawn(0, DOT)])) == [(0, "", "stop")]


def test_a_stop_string_may_begin_within_the_least_number_of_tokens() -> None:
    out = output(stops=("END",), min_tokens=2)
    assert shown(out.take([drawn(0, A), drawn(0, EN), drawn(0, D)])) == [(0, "a", "stop")]
    assert out.completion_tokens == 3
    out = output(stops=("END",), min_tokens=2)
    assert shown(out.take([drawn(0, A), drawn(0, EN, "length")])) == [(0, "aEN", "length")]


class Marked:
    """A parser with marks of one letter: "a" opens the reasoning, "b" closes it, "." is a call; markup is not text."""

    def __init__(self) -> None:
        self.thinks = False
        self.calls = 0

    def feed(self, text: str) -> list[Part]:
        parts: list[Part] = []
        for letter in text.replace(" ", ""):
            if letter in "ab":
                self.thinks = letter == "a"
            elif letter == ".":
                parts += [ToolStart(self.calls, f"id{self.calls}", "f"), ToolArguments(self.calls, "{}")]
                self.calls += 1
            else:
                parts.append(Reasoning(letter) if self.thinks else Content(letter))
        return parts

    def finish(self) -> list[Part]:
        return [Content("!")]


def test_H1_G1_F1_parts_and_their_tokens() -> None:
    out = output(reports=True, parser=Marked)
    pieces = [
        piece
        for token in (A, EN, NEWLINE, B, D, DOT, DOT, EOS)
        for piece in out.take([scored(token, "stop" if token == EOS else None)]).pieces
    ]
    assert [(piece.parts, [one.token for one in piece.reported]) for piece in pieces] == [
        ((Reasoning("E"), Reasoning("N")), [A, EN]),
        ((Reasoning("\n"),), [NEWLINE]),
        ((Content("D"),), [B, D]),
        ((ToolStart(0, "id0", "f"), ToolArguments(0, "{}")), [DOT]),
        ((ToolStart(1, "id1", "f"), ToolArguments(1, "{}")), [DOT]),
        ((Content("!"),), [EOS]),
    ]
    assert sum(len(piece.reported) for piece in pieces) == out.completion_tokens
    assert [piece.finish for piece in pieces if piece.finish] == ["tool_calls"]
    assert out.reasoning_tokens == 3  # the second mark is still spent on it


THOUGHT = [b"Hm", b".\n", b"</", b"think>", b"\n\n", b"\xc3", b"\xa9 ", b"<tool", b"_call>", b"b", b'{"name":"f"}', b""]


@pytest.mark.parametrize("batch", range(1, 12))
def test_only_tokens_of_the_content_are_said(batch: int) -> None:
    """However many tokens come at once; an opening mark that turns out to be none is content."""

    def parser() -> Parser:
        families = Families("hermes", "think")
        return parser_for(families, functions={"f": {}}, thinking=True, new_id=lambda: "1")

    out = Output((7,), TokenBytes(THOUGHT), [[Manner(reports=True, parser=parser)]])
    tokens = [0, 1, 2, 3, 4, 5, 6, 7, 9, 7, 8, 10, 11]
    steps = [scored(token, "stop" if token == 11 else None) for token in tokens]
    pieces = [piece for at in range(0, len(steps), batch) for piece in out.take(steps[at : at + batch]).pieces]
    reported = [one for piece in pieces for one in piece.reported]
    assert [one.token for one in reported] == tokens
    assert "".join([text_of(piece.parts) for piece in pieces]) == "\xe9 <toolb"
    assert [one.token for one in reported if one.said] == [5, 6, 7, 9]


def test_tokens_that_show_nothing_yet_are_not_reported_with_those_before_them() -> None:
    out = output(reports=True)
    [first] = out.take([scored(A), scored(HALF)]).pieces
    [second] = out.take([scored(OTHER_HALF), scored(EOS, "stop")]).pieces
    assert [[one.token for one in piece.reported] for piece in (first, second)] == [[A], [HALF, OTHER_HALF, EOS]]


@pytest.mark.parametrize("end", ["length", "stop string"])
def test_G7_a_call_that_the_model_did_not_end_by_itself(end: str) -> None:
    out = output(parser=Marked, stops=("END",))
    tokens = [drawn(0, DOT, "length")] if end == "length" else [drawn(0, DOT), drawn(0, END)]
    assert shown(out.take(tokens))[0][2] == ("length" if end == "length" else "stop")


def test_special_tokens_are_text_where_they_are_shown() -> None:
    table = TokenBytes(WORDS, {EOS: b"<call>"})
    tokens = [drawn(0, A), drawn(0, EOS), drawn(0, B, "length")]
    for shows, text in ((frozenset[int](), "a b"), (frozenset({EOS}), "a<call> b")):
        assert shown(Output((7,), table, [[Manner(shown=shows)]]).take(tokens)) == [(0, text, "length")]


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
                "".join(text_of(p.parts) for p in pieces if p.index == index),
                [p.finish for p in pieces if p.index == index and p.finish is not None],
            )
            for index in range(3)
        }
        assert all(finish == ["stop"] for _, finish in answer.values())
        return answer, out.completion_tokens

    batches = [steps[a:b] for a, b in zip([0, *cuts], [*cuts, len(steps)], strict=True)]
    assert folded(batches) == folded([[step] for step in steps])
