"""Choices as they grow: what was said, how many tokens that were, what is missing. And how it is written in a pipe."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from nproxy.cli.chat.answers import Answers, Tokens
from nproxy.cli.chat.columns import Columns, columns, footer
from nproxy.cli.chat.failed import ChatFailed
from nproxy.cli.chat.plain import Follower, as_json
from nproxy.openai.chunks import UpstreamChunk, parse_answer, parse_chunk
from nproxy.openai.dialect import Dialect
from nproxy.openai.jsonvalue import JSON


def chunk(*said: tuple[int, str | None, str | None], tokens: int | None = None) -> UpstreamChunk:
    """A chunk with choices of (index, text, finish_reason), and a count of completion tokens."""
    choices = [{"index": index, "delta": {"content": text}, "finish_reason": end} for index, text, end in said]
    usage = None if tokens is None else {"prompt_tokens": 3, "completion_tokens": tokens}
    return parse_chunk(json.dumps({"choices": choices, "usage": usage}).encode(), Dialect.CHAT)


def answers(n: int, *chunks: UpstreamChunk) -> Answers:
    """What n choices are after these chunks, of which one came each second."""
    found = Answers.of(n, 0.0)
    for second, one in enumerate(chunks, start=1):
        found.take(one, float(second))
    return found


@pytest.mark.parametrize(
    ("counted", "tokens"),
    [
        pytest.param(None, [Tokens(2, False), Tokens(1, False)], id="no usage: pieces"),
        pytest.param(3, [Tokens(2, True), Tokens(1, True)], id="usage counts the pieces"),
        pytest.param(4, [Tokens(3, True), Tokens(1, True)], id="and the end of the choice that ended by itself"),
        pytest.param(9, [Tokens(6, False), Tokens(3, False)], id="several tokens in a piece: divided as pieces are"),
    ],
)
def test_tokens(counted: int | None, tokens: list[Tokens]) -> None:
    pieces = chunk((0, "a", None)), chunk((0, "b", "stop"), (1, "c", None)), chunk((1, None, "length"), tokens=counted)
    assert answers(2, *pieces).tokens() == tokens


THINKING = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}, {"type": "other", "text": "no"}]}
SAYING = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}, {"type": "reference", "ids": [1]}, 7]


@pytest.mark.parametrize(
    "contents",
    [
        pytest.param([[THINKING], SAYING], id="parts"),
        pytest.param([[THINKING], "hello"], id="parts, then text"),
        pytest.param([[{"type": "thinking", "thinking": "hm"}, *SAYING]], id="reasoning as text"),
        pytest.param([[THINKING, {"type": "text", "text": None}], None, SAYING], id="nulls"),
    ],
)
def test_a_content_of_parts_is_read(contents: list[JSON]) -> None:
    bodies = [json.dumps({"choices": [{"index": 0, "delta": {"content": content}}]}) for content in contents]
    (choice,) = answers(1, *(parse_chunk(body.encode(), Dialect.CHAT) for body in bodies)).choices
    assert (choice.reasoning, choice.text) == ("hm", "hello")


def test_a_whole_answer_of_parts_is_read() -> None:
    message = {"role": "assistant", "content": [THINKING, *SAYING]}
    body = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
    (choice,) = answers(1, parse_answer(body.encode(), Dialect.CHAT)).choices
    assert (choice.reasoning, choice.text) == ("hm", "hello")


def test_one_choice_has_what_usage_says() -> None:
    assert answers(1, chunk((0, "a", "stop")), chunk(tokens=40)).tokens() == [Tokens(40, True)]


@pytest.mark.parametrize(
    "told",
    [
        pytest.param([chunk(tokens=4), chunk(tokens=2)], id="in a chunk for each choice"),
        pytest.param([chunk((0, None, "stop"), tokens=4), chunk((1, None, "stop"), tokens=2)], id="along with each"),
        pytest.param([chunk(tokens=1), chunk(tokens=3), chunk(tokens=6)], id="as a running total"),
    ],
)
def test_usage_is_that_of_all_choices(told: list[UpstreamChunk]) -> None:
    usage = answers(2, chunk((0, "a", None), (1, "b", None)), *told).usage
    assert usage is not None
    assert (usage.prompt, usage.completion) == (3, 6)


def test_speed_counts_from_the_first_token_on() -> None:
    (choice,) = answers(1, chunk((0, None, None)), *[chunk((0, "a", None))] * 5).choices
    assert choice.speed(5) == 1.0
    assert choice.speed(9) == 2.0
    assert choice.speed(1) is None


def test_a_footer_says_the_end_the_tokens_and_the_speed() -> None:
    (choice,) = answers(1, *[chunk((0, "a", None))] * 3).choices
    assert footer(choice, Tokens(3, False), stopped=False) == "~3 tokens, 1.0 tokens/s"
    assert footer(choice, Tokens(1, True), stopped=False) == "1 token"
    assert footer(choice, Tokens(3, False), stopped=True) == "stopped, ~3 tokens, 1.0 tokens/s"
    choice.finish = "length"
    assert footer(choice, Tokens(3, True), stopped=False) == "length, 3 tokens, 1.0 tokens/s"
    assert footer(answers(1).choices[0], Tokens(0, False), stopped=False) == "waits"


def test_a_choice_that_nobody_asked_for_is_an_error() -> None:
    with pytest.raises(ChatFailed, match="the server sent choice 2, but 2 were requested"):
        answers(2, chunk((2, "a", None)))


@pytest.mark.parametrize(
    ("chunks", "failure"),
    [
        ([chunk((0, "a", "stop"), (1, "b", "length"))], None),
        ([chunk((0, "a", "stop"))], "the server sent 1 of 2 choices; nproxy gives it n: nproxy serve --upstream URL"),
        ([], "the server sent 0 of 2 choices"),
        ([chunk((0, "a", "stop"), (1, "b", None))], "the stream ended before choice 1 did"),
        ([chunk((0, "a", None), (1, "b", None))], "the stream ended before choices 0, 1 did"),
    ],
)
def test_what_is_missing_is_said(chunks: list[UpstreamChunk], failure: str | None) -> None:
    assert answers(2, *chunks).failure() == failure


def test_a_choice_that_the_gateway_could_not_get_fails_by_itself() -> None:
    error = {"index": 1, "delta": {}, "finish_reason": "error", "error": {"message": "no\x1b[2J\nluck"}}
    broken = parse_chunk(json.dumps({"choices": [error]}).encode(), Dialect.CHAT)
    found = answers(2, chunk((0, "a", "stop")), broken)
    assert found.failure() == "choice 1 failed: no [2J luck"
    assert footer(found.choices[1], Tokens(0, False), stopped=False) == "error: no [2J luck"


def test_what_the_user_stopped_is_no_failure() -> None:
    found = answers(2, chunk((0, "a", None)))
    found.stopped = True
    assert found.failure() is None


@given(
    st.lists(st.lists(st.sampled_from(["a", "b\n", "", "cc"]), max_size=4), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
def test_a_pipe_gets_the_same_text_in_whatever_order_it_came(texts: list[list[str]], random: object) -> None:
    """Each choice after the one before it, whole, with a line before it where there are several."""
    found = Answers.of(len(texts), 0.0)
    follower, written = Follower(found), ""
    left = [[*pieces] for pieces in texts]
    ended = [False] * len(texts)
    while not all(ended):
        index = random.choice([at for at, over in enumerate(ended) if not over])  # type: ignore[attr-defined]
        ended[index] = not left[index]
        said = (index, None, "stop") if ended[index] else (index, left[index].pop(0), None)
        found.take(chunk(said), 1.0)
        written += "".join(follower.news())
    assert written + "".join(follower.rest()) == expected(["".join(pieces) for pieces in texts])


def expected(texts: Sequence[str]) -> str:
    whole = [text if text.endswith("\n") else f"{text}\n" for text in texts]
    if len(whole) == 1:
        return whole[0]
    return "\n".join(f"--- choice {index} ---\n{text}" for index, text in enumerate(whole))


def test_what_broke_off_is_written_as_far_as_it_came() -> None:
    found = answers(3, chunk((0, "a", None), (2, "c", None)))
    follower = Follower(found)
    assert "".join([*follower.news(), *follower.rest()]) == "--- choice 0 ---\na\n\n--- choice 2 ---\nc\n"


def test_json_holds_what_is_known() -> None:
    found = answers(1, chunk((0, "a", None)), chunk((0, "b", "stop"), tokens=2))
    found.ended = 2.5
    assert json.loads(as_json("http://a/v1", "m", found)) == {
        "chat": 1,
        "url": "http://a/v1",
        "model": "m",
        "choices": [
            {
                "index": 0,
                "content": "ab",
                "reasoning": None,
                "finish_reason": "stop",
                "error": None,
                "tokens": 2,
                "tokens_exact": True,
                "first_token_seconds": 1.0,
                "tokens_per_second": 1.0,
            }
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
        "seconds": 2.5,
        "failure": None,
    }


@pytest.mark.parametrize(
    ("choices", "width", "across"),
    [(1, 200, 1), (4, 80, 2), (4, 120, 2), (4, 150, 4), (3, 80, 2), (16, 30, 1), (5, 120, 3)],
)
def test_columns_fit_and_rows_are_even(choices: int, width: int, across: int) -> None:
    assert columns(choices, width) == across


def drawn(found: Answers, width: int, height: int) -> str:
    """A frame of growing answers, on a terminal of this size."""
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    with console.capture() as frame:
        console.print(Columns(found, growing=True))
    return frame.get()


def test_rows_that_do_not_fit_are_shown_from_the_first_that_still_grows() -> None:
    found = answers(8, chunk(*((index, f"text {index}", None) for index in range(8))))
    assert "choices 0 to 1 of 8; 0 of 8 ended" in drawn(found, 40, 14)
    found.take(chunk((0, None, "stop"), (1, None, "stop"), (2, None, "stop")), 2.0)
    frame = drawn(found, 40, 14)
    assert "choices 3 to 4 of 8; 3 of 8 ended" in frame
    assert "text 3" in frame and "text 2" not in frame and "text 5" not in frame
    found.take(chunk(*((index, None, "stop") for index in range(3, 7))), 3.0)
    assert "choices 6 to 7 of 8; 7 of 8 ended" in drawn(found, 40, 14)


@given(st.integers(1, 20), st.integers(20, 300), st.integers(1, 60), st.integers(0, 3000))
def test_a_frame_is_never_higher_than_the_terminal(n: int, width: int, height: int, length: int) -> None:
    found = answers(n, chunk(*((index, "word " * (length // 5), None) for index in range(n))))
    lines = drawn(found, width, height).rstrip("\n").count("\n") + 1
    assert lines <= max(height, 4)


def test_the_end_of_a_long_answer_is_what_is_shown() -> None:
    found = answers(1, chunk((0, "\n".join(f"line {number}" for number in range(100)), None)))
    frame = drawn(found, 40, 14)
    assert "line 99" in frame and "line 90" in frame and "line 80" not in frame
